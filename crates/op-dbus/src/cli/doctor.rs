//! `op-dbus doctor`: what each provider lacks on this machine, and the one thing to do next.

mod check;
mod devices;
mod facts;
mod folders;
mod general;
mod library;
mod loader;
mod machine;
mod nodes;
mod page;
mod proof;
mod service;
mod unit;

use std::process::ExitCode;

use op_dbus_daemon::service::candidates;
use op_dbus_daemon::settings::options::fleet;
use op_dbus_daemon::settings::{Bus, Loaded, Origin, Provider};
use op_dbus_models::{Family, Level, manifest};
use tokio::sync::OnceCell;
use tokio::task::{spawn_blocking, yield_now};

use super::config::Files;
use super::terminal::colour;
use super::{Done, pretty_json, print};
use check::{Check, PROOF, Section};
use folders::Who;
use loader::Loader;
use machine::{Listed, Root};
use page::Findings;
use unit::Unit;

/// Find out which providers work here, what is missing, and what to do next
///
/// Files and environment are read as `op-dbus daemon` would read them if you started it now, with the
/// environment that the installed unit sets, unless `--config` or another bus is given; the service
/// need not run, and is not started, but a bus other than the system's has to answer. Each provider that
/// is asked for is proved: workers are started as the service starts them, compute, and answer a call.
/// Nothing is changed; what is packed or compiled for that stays only in a cache of the user who runs it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  op-dbus doctor
  op-dbus doctor cuda --quick
  op-dbus doctor --json | jq -r .next

Ends with 1 when something stands in the way, else with 0, also where nothing could be proved
(`works` is null in JSON then), and without JSON for a mistake in the settings: with 6, or 2 if it is in flags alone.")]
pub struct Args {
    /// Providers; by default those that the settings ask for, and a line about each other one
    #[arg(value_name = "PROVIDER", value_parser = provider)]
    providers: Vec<Provider>,
    /// Look only, and start no worker
    #[arg(long)]
    quick: bool,
    /// One JSON object: works, next, execution_provider, vector_level, general, providers
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    files: Files,
    /// Bus that the service is on, if not the configured one
    #[arg(long, value_name = "BUS", help_heading = "Service", value_parser = super::bus)]
    bus: Option<Bus>,
}

/// Reads the name of a provider, or another name that it has.
fn provider(name: &str) -> Result<Provider, String> {
    let canonical = manifest::provider(name).map_or(name, |(_, provider)| provider.name.as_str());
    let known = || names().map(|provider| provider.to_string()).collect::<Vec<_>>().join(", ");
    match canonical.parse() {
        Ok(Provider::Auto) | Err(_) => Err(format!("known are {}", known())),
        Ok(provider) => Ok(provider),
    }
}

/// Every provider that is one, the plainest first.
fn names() -> impl Iterator<Item = Provider> {
    Provider::ALL.iter().map(|(provider, _)| *provider).filter(|one| *one != Provider::Auto)
}

pub fn run(args: Args) -> Done {
    let unit = Unit::read();
    let elsewhere = args.files.elsewhere() || args.bus.as_ref().is_some_and(|b| *b != Bus::System);
    let own_unit = unit.as_ref().ok().filter(|_| !elsewhere);
    let (environment, of_unit) = own_unit.map(Unit::settings).unwrap_or_default();
    let mut loaded = args.files.load_beside(environment)?;
    let closed = own_unit.and_then(|unit| unit.lend_credentials(&mut loaded.settings));
    let configured = || (loaded.settings.bus.clone(), loaded.origin("bus").clone());
    let flag = |bus| (bus, Origin::Flag("--bus".to_owned()));
    let (bus, bus_origin) = args.bus.map_or_else(configured, flag);
    let examination = Examination {
        bus,
        bus_origin,
        loaded,
        root: Root::system(),
        listed: OnceCell::new(),
        loader: Loader::here(),
        unit,
        of_unit,
        closed,
        quick: args.quick,
        named: args.providers,
    };
    super::block_on_and_clear(async {
        let findings = examination.findings().await;
        print(if args.json { pretty_json(&findings) } else { findings.text(colour()) })?;
        Ok(if findings.works == Some(false) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    })
}

/// What is looked at, and with what.
struct Examination {
    bus: Bus,
    bus_origin: Origin,
    loaded: Loaded,
    root: Root,
    /// What NVIDIA's own program tells of the devices, once it was asked.
    listed: OnceCell<Option<Listed>>,
    loader: Option<Loader>,
    unit: Result<Unit, String>,
    /// What is to be told of the settings that the unit has.
    of_unit: Vec<Check>,
    /// The credential of a fleet that this user can't read.
    closed: Option<String>,
    quick: bool,
    /// Providers of the command line.
    named: Vec<Provider>,
}

impl Examination {
    async fn findings(&self) -> Findings {
        let settings = &self.loaded.settings;
        let loaded = self.loaded.clone();
        // It reads the whole of the model, where a signal is not heard.
        let model = spawn_blocking(move || general::model(&loaded)).await;
        let (model, record) =
            model.unwrap_or_else(|error| (Check::unchecked("model", error.to_string()), None));
        let own_graph = record.as_ref().filter(|model| model.family == Family::Onnx);
        let own_graph = own_graph.map(|model| model.name.as_str());
        let who = Who::of(self.unit.as_ref().ok().and_then(Unit::user).as_deref());
        let can_compute = !self.quick && !model.failed();
        let is_unit = self.unit.is_ok() && self.bus == Bus::System;
        let mut general = service::checks(&self.bus, &self.bus_origin, is_unit).await;
        general.push(model);
        general.extend(record.iter().flat_map(|model| general::fit(&self.loaded, model)));
        general.extend(unit::unstartable(&self.unit));
        general.extend(unit::other_user(&self.unit));
        general.extend(self.of_unit.iter().cloned());
        // On another bus it is not the unit that would be started.
        let sandbox = self.unit.as_ref().ok().filter(|_| self.bus == Bus::System);
        general.extend(folders::checks(settings, &who, self.unit.as_ref().ok(), sandbox));
        general.push(general::policy(&self.root, &self.bus));
        general.push(general::cpu(&self.loaded));
        let asked = self.asked();
        let mut providers = Vec::new();
        for provider in names().filter(|one| self.named.is_empty() || asked.contains(one)) {
            let is_asked = asked.contains(&provider);
            // Libraries are read here; between them a signal is heard.
            yield_now().await;
            let mut checks = self.looks(provider, own_graph).await;
            if is_asked {
                checks.extend(proof::faults(&self.loaded, provider));
                checks.extend(self.proof(provider, can_compute, &checks).await);
            }
            if settings.execution_provider == Provider::Auto {
                checks.iter_mut().for_each(|one| one.next = one.next.take().map(facts::under_auto));
            }
            providers.push(Section::new(provider.to_string(), is_asked, checks));
        }
        self.concluded(general, providers)
    }

    /// The providers that are to work.
    fn asked(&self) -> Vec<Provider> {
        if self.named.is_empty() { candidates(&self.loaded.settings) } else { self.named.clone() }
    }

    /// What can be seen without starting anything, in the order in which it is to be mended.
    async fn looks(&self, provider: Provider, own_graph: Option<&str>) -> Vec<Check> {
        let facts = facts::configured(provider, &self.loaded.settings);
        let mut checks = machine::checks(&self.root, facts);
        checks.extend(nodes::checks(&self.root, facts, nodes::may_open));
        // Behind the nodes, without which it finds nothing.
        if let Some(driver) = facts.driver {
            let listed = self.listed.get_or_init(machine::listed).await;
            let given = devices::given(&self.loaded, provider);
            checks.extend(listed.as_ref().map(|told| machine::capability(driver, told, &given)));
        }
        let loader = self.loader.as_ref();
        let (found, files) = library::look(&self.loaded, own_graph, provider, loader);
        checks.extend(found);
        let obstacles = |unit: &Unit| {
            let barred = match provider {
                Provider::Remote => unit.bars_endpoints(&fleet::endpoints(&self.loaded.settings)),
                _ => files.iter().find_map(|file| unit.bars_library(file)),
            };
            let lacking = unit.lacks(&nodes::groups(&self.root, facts));
            let closed = unit.may_not_open(nodes::of_root(&self.root, facts));
            [lacking, closed, barred].into_iter().flatten().collect::<Vec<_>>()
        };
        checks.extend(unit::check(&self.unit, facts, obstacles));
        checks
    }

    async fn proof(&self, provider: Provider, can_compute: bool, checks: &[Check]) -> Vec<Check> {
        let has_library = !checks.iter().any(|one| one.check == "library" && one.failed());
        let settings = &self.loaded.settings;
        let why_not = match () {
            () if self.quick => "left out (--quick)",
            () if !can_compute => "needs the model",
            () if settings.vector_level == Level::None => "vector_level is none",
            () if !has_library => "needs the library",
            () if provider == Provider::Remote
                && let Some(why) = &self.closed =>
            {
                why.as_str()
            }
            () => return proof::check(&self.loaded, provider).await,
        };
        vec![Check::unchecked(PROOF, why_not)]
    }

    /// Whether what is asked for would work, and what to do if not.
    fn concluded(&self, general: Vec<Check>, providers: Vec<Section>) -> Findings {
        let settings = &self.loaded.settings;
        // The first check is the running service, which is not what would be started.
        let failures = || general[1..].iter().filter(|one| one.failed());
        // No model can be fetched to where no folder can be.
        let general_failure =
            failures().find(|one| one.check == "model_dir").or_else(|| failures().next());
        let mut asked = providers.iter().filter(|section| section.asked);
        let wanted: Vec<&Section> = match settings.execution_provider {
            _ if !self.named.is_empty() => asked.collect(),
            // One of them is enough.
            Provider::Auto => {
                let working = asked.clone().find(|section| section.works != Some(false));
                working.or_else(|| asked.next_back()).into_iter().collect()
            }
            first => asked.filter(|section| section.provider == first.to_string()).collect(),
        };
        let failed = wanted.iter().find(|section| section.works == Some(false));
        let works = match general_failure.is_some() || failed.is_some() {
            true => Some(false),
            false => wanted.iter().all(|section| section.works.is_some()).then_some(true),
        };
        let mut nexts = [
            general_failure.and_then(|check| check.next.clone()),
            failed.and_then(|section| section.next.clone()),
        ];
        // Who names a provider wants to know about that first.
        if !self.named.is_empty() {
            nexts.reverse();
        }
        let next = nexts.into_iter().flatten().next().or_else(|| general[0].next.clone());
        Findings {
            works,
            next,
            execution_provider: settings.execution_provider.to_string(),
            vector_level: settings.vector_level.as_str().to_owned(),
            general,
            providers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_known_by_all_their_names() {
        assert_eq!(provider("cuda"), Ok(Provider::Cuda));
        assert_eq!(provider("trt"), Ok(Provider::TensorRt));
        assert!(provider("gpuu").unwrap_err().contains("tensorrt"));
        assert!(provider("auto").is_err());
    }
}
