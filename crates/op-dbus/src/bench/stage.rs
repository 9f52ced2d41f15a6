//! Everything that is measured, set up and taken down: variants, each at one or both places.

use std::sync::Arc;
use std::time::Duration;

use op_dbus_daemon::settings::{Bus, Loaded, Origin, Settings, Sources};
use op_dbus_embedder::backend::Spec;
use op_dbus_models::Store;
use tempfile::TempDir;

use super::args::{Args, What};
use super::client::{Client, Remote, Tokens};
use super::corpus::calls;
use super::engine::Local;
use super::peak::Work;
use super::spawn::PrivateService;
use super::variant::{Facts, Flags, Place, name_level, product, typed};
use crate::cli::{Failure, cache_instead_of, connect, wait};

/// How long a service may be loading when we come.
const READY_TIMEOUT: Duration = Duration::from_secs(180);
/// Clients that one target needs at most.
const CLIENTS: usize = 64;
/// Tokens that may wait or be computed: more than that many clients have with long texts.
const ADMITTED_TOKENS: &str = "4294967296";
/// Texts in one call that asks for token counts.
const COUNT_CALL_TEXTS: usize = 256;

/// Everything that is measured.
pub struct Stage {
    pub targets: Vec<Target>,
    spawned: Vec<PrivateService>,
    /// What each variant is given beside what is compared: room for all clients, a cache.
    common: Flags,
    /// That cache, where it is gone when the measurement is.
    _cache: Option<TempDir>,
}

/// One variant at one place.
pub struct Target {
    pub place: Place,
    /// Number of the variant.
    pub variant: usize,
    pub facts: Facts,
    /// What the model computes; `None` where that is not known.
    pub work: Option<Work>,
    /// What a worker of the variant's engine here computes with, if that is there and no CPU.
    pub device: Option<Spec>,
    pub clients: Vec<Client>,
    host: Host,
}

enum Host {
    Engine(Box<Local>),
    Daemon(Arc<Remote>),
}

impl Stage {
    /// Starts everything that `args` ask for.
    ///
    /// # Errors
    /// What stands in the way of the settings, the models, the engines or the bus.
    pub async fn set(args: &Args) -> Result<Self, Failure> {
        let places = match args.at.as_slice() {
            [] if args.only.contains(&What::Lanes) => {
                vec![Place::Engine, Place::Daemon, Place::Memfd, Place::Direct, Place::DirectMemfd]
            }
            [] => vec![Place::Engine, Place::Daemon],
            at => at.to_vec(),
        };
        let named = args.bus.as_ref().filter(|bus| !args.spawn && !bus.is_empty());
        let named = named.filter(|_| places.iter().any(|place| *place != Place::Engine));
        let named = named.map(|address| address.parse::<Bus>()).transpose();
        let named = named
            .map_err(|reason| Failure::usage(format!("--bus or OP_DBUS_BUS is wrong: {reason}")))?;
        let settings = load(&Flags::new())?.settings;
        let cache = cache_instead_of(&settings.cache_dir)
            .map_err(|error| Failure::refused(format!("no temporary folder: {error}")))?;
        let mut common: Flags = [
            ("quota_tokens", ADMITTED_TOKENS),
            ("queue_tokens_max", ADMITTED_TOKENS),
            // Texts come again and again, and are to be computed each time.
            ("cache_bytes", "0"),
            // What waits for its turn would be unloaded, and its next figure have the load in it.
            ("idle_unload_s", "0"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        if let Some(folder) = &cache {
            common.insert("cache_dir".to_owned(), folder.path().to_string_lossy().into_owned());
        }
        let mut stage = Self { targets: Vec::new(), spawned: Vec::new(), common, _cache: cache };
        let variants = product(&args.compared, &settings)?;
        match named {
            Some(address) => stage.set_beside(args, address, variants, &places).await?,
            None => {
                for (variant, flags) in variants.into_iter().enumerate() {
                    stage.set_variant(variant, flags, &places).await?;
                }
            }
        }
        Ok(stage)
    }

    /// A service that is already there, and the engine as it is configured beside it.
    async fn set_beside(
        &mut self,
        args: &Args,
        address: Bus,
        variants: Vec<Flags>,
        places: &[Place],
    ) -> Result<(), Failure> {
        if !args.compared.is_empty() {
            // A wrong value is told first.
            for flags in variants {
                load(&flags)?;
            }
            return Err(Failure::usage(
                "a service that is already there computes in one way: use --spawn to compare, or \
                 leave --bus (and OP_DBUS_BUS) out",
            ));
        }
        // One that is not there is not waited for.
        connect(&address).await?.ping().await?;
        let service = wait(&address, READY_TIMEOUT).await?;
        let remote = Remote::new(address, service);
        let served = remote.facts().await?;
        let mut flags = self.common.clone();
        if let Some(level) = args.compared.level.first().filter(|level| **level != served.level) {
            let serves = if served.level.is_empty() { &served.model } else { &served.level };
            return Err(Failure::usage(format!(
                "the service serves {serves}, not {level}: leave --level out, or use --spawn"
            )));
        }
        if !served.level.is_empty() {
            name_level(&mut flags, &served.level);
        }
        if places.contains(&Place::Engine) {
            self.add_engine(0, load(&flags)?).await?;
        }
        self.add_daemon(0, served, remote, places).await
    }

    /// One variant, wherever it is asked for.
    async fn set_variant(
        &mut self,
        variant: usize,
        mut flags: Flags,
        places: &[Place],
    ) -> Result<(), Failure> {
        flags.extend(self.common.clone());
        // What is wrong with the flags is told here, not by a service that ends over it.
        let loaded = load(&flags)?;
        let state_file = loaded.settings.state_file.clone();
        if places.contains(&Place::Engine) {
            self.add_engine(variant, loaded).await?;
        }
        if places.iter().any(|place| *place != Place::Engine) {
            let service = PrivateService::start(&mut flags, &state_file).await?;
            let address = service.bus();
            self.spawned.push(service);
            let service = connect(&address).await?;
            let remote = Remote::new(address, service);
            let batch_tokens = load(&flags)?.settings.batch_tokens_max.unwrap_or(0);
            let facts = Facts { batch_tokens, ..remote.facts().await? };
            self.add_daemon(variant, facts, remote, places).await?;
        }
        Ok(())
    }

    async fn add_engine(&mut self, variant: usize, loaded: Loaded) -> Result<(), Failure> {
        let model_dir = loaded.settings.model_dir.clone();
        let local = Local::start(loaded).await?;
        let facts = local.facts();
        self.targets.push(Target {
            place: Place::Engine,
            variant,
            work: work(&model_dir, &facts.model),
            device: local.device(),
            facts,
            clients: (0..CLIENTS).map(|_| local.client()).collect(),
            host: Host::Engine(Box::new(local)),
        });
        Ok(())
    }

    async fn add_daemon(
        &mut self,
        variant: usize,
        facts: Facts,
        remote: Remote,
        places: &[Place],
    ) -> Result<(), Failure> {
        let beside = self.targets.iter().find(|target| target.variant == variant);
        if let Some(local) = beside.map(|engine| &engine.facts)
            && local.space != facts.space
        {
            return Err(Failure::refused(format!(
                "the service embeds with {} in {} and the engine here with {} in {}: compare like with like \
                 (--spawn with --level, --provider and --precision), or measure one place alone (--at)",
                facts.model, facts.precision, local.model, local.precision
            )));
        }
        let device = beside.and_then(|engine| engine.device.clone());
        let model_dir = load(&Flags::new())?.settings.model_dir;
        let remote = Arc::new(remote);
        for place in places.iter().filter(|place| **place != Place::Engine) {
            self.targets.push(Target {
                place: *place,
                variant,
                work: work(&model_dir, &facts.model),
                device: device.clone(),
                facts: facts.clone(),
                clients: remote.clients(*place, CLIENTS).await?,
                host: Host::Daemon(remote.clone()),
            });
        }
        Ok(())
    }

    /// Ends everything in order.
    pub async fn strike(self) {
        for target in self.targets {
            if let Host::Engine(engine) = target.host {
                engine.stop().await;
            }
        }
        for spawned in self.spawned {
            spawned.stop().await;
        }
    }
}

impl Target {
    /// Tokens of each text as the model reads it, and how many texts are longer than that.
    pub async fn count_tokens(&self, texts: &[String]) -> Result<(Vec<usize>, usize), Failure> {
        let most = self.facts.max_input_tokens.max(1);
        let (mut tokens, mut truncated) = (Vec::with_capacity(texts.len()), 0);
        for texts in calls(texts, COUNT_CALL_TEXTS) {
            let counts = match &self.host {
                Host::Engine(engine) => engine.count_tokens(texts).await?,
                Host::Daemon(remote) => remote.count_tokens(texts).await?,
            };
            for count in counts {
                truncated += usize::from(count as usize > most);
                tokens.push(most.min(count as usize));
            }
        }
        Ok((tokens, truncated))
    }

    /// What a batch takes on each device of an engine here; nothing is known of a service's.
    pub fn costs(&self, tokens: usize) -> Vec<(String, Duration)> {
        match &self.host {
            Host::Engine(engine) => engine.costs(tokens),
            Host::Daemon(_) => Vec::new(),
        }
    }

    /// The counters of what computes.
    pub async fn tokens(&self) -> Result<Tokens, Failure> {
        match &self.host {
            Host::Engine(engine) => Ok(engine.tokens()),
            Host::Daemon(remote) => remote.tokens().await,
        }
    }
}

/// The settings of this process with `flags`. What is said of them names the flags that were typed.
fn load(flags: &Flags) -> Result<Loaded, Failure> {
    let rename = |origin: &mut Origin| {
        if let Origin::Flag(flag) = origin {
            typed(flag).clone_into(flag);
        }
    };
    match Settings::load(&Sources::of_process(flags.clone())) {
        Ok(mut loaded) => {
            loaded.origins.values_mut().for_each(rename);
            Ok(loaded)
        }
        Err(mut mistakes) => {
            mistakes.0.iter_mut().for_each(|mistake| rename(&mut mistake.origin));
            Err(mistakes.into())
        }
    }
}

fn work(model_dir: &std::path::Path, model: &str) -> Option<Work> {
    Work::of(&Store::open(model_dir).get(model).ok()?.config())
}
