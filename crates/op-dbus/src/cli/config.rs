//! `op-dbus config`: what the settings are, where each comes from, and what is wrong with them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use op_dbus_daemon::service;
use op_dbus_daemon::settings::{
    CpuEngine, Loaded, Settings, Shown, Sources, config_file, markdown,
};
use op_dbus_models::{Error as StoreError, Store};
use op_dbus_native::Isa;

use super::terminal::{Colour, colour, paint, printable};
use super::{Done, Failure, pretty_json, printed, tell};

/// Show the settings and where they come from, or check them
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Print every setting, its value and where it comes from
    ///
    /// Files and environment are read as `op-dbus daemon` would read them if you started it now.
    /// The bus method `GetSettings` tells what the running service has.
    #[command(after_help = "\
Examples:
  op-dbus config show
  op-dbus config show --json | jq -r '.[] | select(.origin != \"default\").key'
  op-dbus config show --defaults > /etc/op-dbus/config.toml")]
    Show {
        #[command(flatten)]
        files: Files,
        /// Print JSON, for programs
        #[arg(long, conflicts_with = "defaults")]
        json: bool,
        /// Print a configuration file with every setting explained and at its built-in value
        #[arg(long, conflicts_with_all = ["config", "state_file"])]
        defaults: bool,
        /// With --defaults: print the page of documentation instead
        #[arg(long, hide = true, requires = "defaults")]
        markdown: bool,
    },
    /// Find every mistake in files and environment, without starting anything
    ///
    /// What may come right later, such as a model or a library that is not fetched yet, is a warning. Settings with
    /// which nothing could be embedded end with 6.
    #[command(after_help = "\
Examples:
  op-dbus config check
  op-dbus config check --config ./new-config.toml")]
    Check {
        #[command(flatten)]
        files: Files,
    },
}

/// Which files are read in place of the usual ones.
#[derive(clap::Args)]
pub struct Files {
    /// Read this file in place of /etc/op-dbus/config.toml and its drop-ins
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Read this state file
    #[arg(long, value_name = "PATH")]
    state_file: Option<PathBuf>,
}

impl Files {
    /// Reads the settings, and tells what the administrator should know about them.
    ///
    /// # Errors
    /// Every mistake in them.
    pub fn load(self) -> Result<Loaded, Failure> {
        self.load_beside(BTreeMap::new())
    }

    /// Whether these are the settings of another service than the installed one.
    pub fn elsewhere(&self) -> bool {
        // An empty variable counts as not set.
        let named = |name, installed: &str| {
            std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != installed)
        };
        self.config.is_some() || named("OP_DBUS_CONFIG", "") || named("OP_DBUS_BUS", "system")
    }

    /// The same as `load`, with variables that count where this process has none of that name.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_beside(self, variables: BTreeMap<OsString, OsString>) -> Result<Loaded, Failure> {
        let mut flags = BTreeMap::new();
        for (flag, path) in [("config", self.config), ("state-file", self.state_file)] {
            let Some(path) = path else { continue };
            // The values of settings are texts.
            let path = path.into_os_string().into_string().map_err(|path| {
                Failure::usage(format!(
                    "flag --{flag}: the path {path:?} is not UTF-8 text; give the file another name"
                ))
            })?;
            flags.insert(flag.replace('-', "_"), path);
        }
        let mut sources = Sources::of_process(flags);
        for (name, value) in variables {
            sources.env.entry(name).or_insert(value);
        }
        let loaded = Settings::load(&sources)?;
        for warning in &loaded.warnings {
            tell(warning);
        }
        Ok(loaded)
    }
}

pub fn run(args: Args) -> Done {
    let out = match args.action {
        Action::Show { defaults: true, markdown: true, .. } => markdown(),
        Action::Show { defaults: true, .. } => config_file(),
        Action::Show { files, json: true, .. } => pretty_json(&files.load()?.show()),
        Action::Show { files, .. } => table(&files.load()?.show(), colour()),
        Action::Check { files } => {
            let loaded = files.load()?;
            let (lacking, full) = (lacking_isa(&loaded), loaded.full_prompt());
            let (level, missing) = (missing_level(&loaded), service::lacking(&loaded));
            let more: Vec<&String> =
                level.iter().chain(&lacking).chain(&full).chain(&missing).collect();
            more.iter().for_each(tell);
            if loaded.serves_nothing(lacking.is_none()) {
                let why = "nothing can be embedded with these settings; the warnings say why";
                return Err(Failure::not_configured(why));
            }
            match loaded.warnings.is_empty() && more.is_empty() {
                true => "The settings are in order.\n".to_owned(),
                false => {
                    "There is no mistake in the settings, but there are warnings.\n".to_owned()
                }
            }
        }
    };
    printed(out)
}

/// That the CPU is to compute with instructions that it does not have.
pub(super) fn lacking_isa(loaded: &Loaded) -> Option<String> {
    let Settings { cpu_engine, cpu_isa, .. } = &loaded.settings;
    let has: Vec<&str> = Isa::available().into_iter().map(Isa::as_str).collect();
    let is_met = cpu_isa == "auto" || has.contains(&cpu_isa.as_str());
    (*cpu_engine == CpuEngine::Native && !is_met).then(|| {
        format!(
            "{}: cpu_isa is {cpu_isa}, which this CPU lacks (it has {}); set cpu_isa to one of \
             these, or to auto",
            loaded.origin("cpu_isa"),
            has.join(", ")
        )
    })
}

/// That the store does not have the level's model; of one that `model` names the warnings tell.
fn missing_level(loaded: &Loaded) -> Option<String> {
    let Settings { vector_level, model, cpu_engine, model_dir, .. } = &loaded.settings;
    // The simulator has no use for any.
    let is_needed = model.is_none() && *cpu_engine != CpuEngine::Sim;
    let name = vector_level.model().filter(|_| is_needed)?;
    let error = Store::open(model_dir).get(name).err()?;
    matches!(error, StoreError::NotInstalled { .. }).then(|| {
        format!("vector_level is {vector_level} ({}), and {error}", loaded.origin("vector_level"))
    })
}

/// Columns as wide as their longest cell; what is built in stands back when there is colour.
fn table(settings: &[Shown], coloured: bool) -> String {
    const VALUE_MAX: usize = 60;
    let rows: Vec<[String; 3]> = settings
        .iter()
        .map(|s| {
            let value = if s.value.is_empty() { "-" } else { &s.value };
            [s.key.clone(), printable(value, VALUE_MAX), printable(&s.origin, 200)]
        })
        .collect();
    let width = |column: usize| {
        rows.iter().map(|row: &[String; 3]| row[column].chars().count()).max().unwrap_or(0)
    };
    let (keys, values) = (width(0), width(1));
    let mut out = String::new();
    for [key, value, origin] in &rows {
        let line = format!("{key:keys$}  {value:values$}  {origin}");
        let faint = coloured && origin == "default";
        out.push_str(&paint(line, Colour::Faint, faint));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_the_cpu_lacks_leave_other_providers() {
        let folder = tempfile::tempdir().unwrap();
        let lacking = Isa::ALL.iter().find(|isa| !isa.is_available()).unwrap().as_str();
        let told = |flags: &[(&str, &str)]| {
            let mut sources = Sources::under(folder.path());
            sources.flags.extend(flags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
            let loaded = Settings::load(&sources).unwrap();
            let told = lacking_isa(&loaded);
            let nothing = loaded.serves_nothing(told.is_none());
            (told.unwrap_or_default(), nothing)
        };
        let alone = [("cpu_isa", lacking), ("execution_provider", "cpu"), ("fallback", "none")];
        let (sentence, nothing) = told(&alone);
        let start = format!("flag --cpu-isa: cpu_isa is {lacking}, which this CPU lacks (it has ");
        assert!(nothing && sentence.starts_with(&start), "{sentence}");
        let (sentence, nothing) = told(&[alone[0], ("execution_provider", "cuda")]);
        assert!(!nothing && sentence.starts_with(&start), "{sentence}");
        let portable = [("cpu_isa", "portable"), alone[1], alone[2]];
        assert_eq!(told(&portable), (String::new(), false));
        let simulated = [alone[0], alone[1], ("cpu_engine", "sim")];
        assert_eq!(told(&simulated), (String::new(), false));
    }

    #[test]
    fn columns_line_up_and_control_characters_are_shown() {
        let shown = |key: &str, value: &str, origin: &str| Shown {
            key: key.to_owned(),
            value: value.to_owned(),
            origin: origin.to_owned(),
        };
        let settings =
            [shown("vector_level", "low", "flag --vector-level"), shown("log", "\u{1b}[m", "x")];
        let expected = "vector_level  low  flag --vector-level\nlog           ·[m  x\n";
        assert_eq!(table(&settings, false), expected);
    }
}
