//! `op-dbus runtime`: ONNX Runtime libraries and provider libraries in their store beside the model
//! store.

mod list;

use std::path::Path;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use op_dbus_models::runtime::beside;
use op_dbus_models::{Error, Progress, RuntimeStore, manifest, named};
use serde_json::json;

use super::models::{SourceArgs, SourceName};
use super::terminal::harmless;
use super::{Failure, print};

/// Show, fetch, check and remove ONNX Runtime and its provider libraries
#[derive(Subcommand)]
pub enum RuntimeCommand {
    /// Show the libraries that can be fetched and which of them are there
    List,
    Pull(PullArgs),
    Verify(VerifyArgs),
    Remove(RemoveArgs),
}

/// Fetch the library of a provider, verified by digest
///
/// It comes out of a Python package of a pinned version, fetched with your own pip or found in the
/// folder of --from. webgpu and ggml are plugins: the CPU's library, which loads them, is fetched
/// with them. What a provider needs besides its library is printed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  op-dbus runtime pull
  op-dbus runtime pull --provider cuda
  op-dbus runtime pull --provider webgpu --from /media/stick --source folder")]
#[command(
    mut_arg("from", |from| from.help("Wheel, or folder of it or of the library, to look in first")),
    mut_arg("only", |only| only.value_parser(sources_of_libraries()))
)]
pub struct PullArgs {
    /// cpu, cuda, tensorrt, webgpu, openvino, ggml or migraphx
    #[arg(long, value_name = "PROVIDER", default_value = "cpu")]
    provider: String,
    #[command(flatten)]
    sources: SourceArgs,
}

/// Compare every file with its digest
#[derive(Args)]
pub struct VerifyArgs {
    /// Providers; by default everything that is installed
    #[arg(value_name = "PROVIDER")]
    providers: Vec<String>,
}

/// Delete the libraries of providers, of whichever version
#[derive(Args)]
pub struct RemoveArgs {
    /// Providers; those that share a library lose it together
    #[arg(required = true, value_name = "PROVIDER")]
    providers: Vec<String>,
}

/// The sources of `--source` without the hub, which has models alone.
fn sources_of_libraries() -> impl TypedValueParser<Value = SourceName> {
    let sources = SourceName::value_variants().iter().filter(|name| **name != SourceName::Hub);
    PossibleValuesParser::new(sources.filter_map(ValueEnum::to_possible_value))
        .try_map(|name| SourceName::from_str(&name, false))
}

/// Does what the command says with the runtime store beside `model_dir`; results on standard
/// output (as JSON when `json`), progress on standard error.
pub fn run(command: RuntimeCommand, model_dir: &Path, json: bool) -> Result<(), Failure> {
    let store = RuntimeStore::open(beside(model_dir));
    match command {
        RuntimeCommand::List => list::run(&store, json),
        RuntimeCommand::Pull(args) => pull(&store, &args, json),
        RuntimeCommand::Verify(args) => verify(&store, args.providers, model_dir, json),
        RuntimeCommand::Remove(args) => remove(&store, &args.providers, json),
    }
}

fn pull(store: &RuntimeStore, args: &PullArgs, json: bool) -> Result<(), Failure> {
    let (library, _) = manifest::provider(&args.provider)?;
    let (sources, progress) = (args.sources.sources()?, Progress::stderr());
    let host = library.plugin.as_ref().map(|plugin| plugin.host.as_str());
    for provider in [Some(args.provider.as_str()), host].into_iter().flatten() {
        let path = store.pull(provider, &sources, &progress)?;
        tell((provider, None), "installed", Some(&path), json)?;
    }
    Ok(())
}

fn verify(
    store: &RuntimeStore,
    mut providers: Vec<String>,
    model_dir: &Path,
    json: bool,
) -> Result<(), Failure> {
    if providers.is_empty() {
        let first = manifest::libraries().iter().filter_map(|library| library.providers.first());
        let names = first.map(|one| one.name.clone());
        providers = names.filter(|name| may_be_there(&store.check(name))).collect();
    }
    if providers.is_empty() {
        let (dir, here) = (beside(model_dir), named(model_dir));
        let none = format!("no library is installed in {}", dir.display());
        return Err(Failure::refused(format!("{none}; type `op-dbus runtime list{here}`")));
    }
    all_known(&providers)?;
    let mut failures = Vec::new();
    for provider in providers {
        match store.verify(&provider) {
            Ok(path) => tell((&provider, None), "undamaged", Some(&path), json)?,
            Err(error) => failures.push(error.to_string()),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure::refused(failures.join("\n"))) }
}

/// Not where none is installed, or this machine has none.
fn may_be_there<T>(found: &Result<T, Error>) -> bool {
    !matches!(found, Err(Error::NotInstalled { .. } | Error::NoLibrary(_)))
}

fn remove(store: &RuntimeStore, providers: &[String], json: bool) -> Result<(), Failure> {
    all_known(providers)?;
    let mut removed = Vec::new();
    for provider in providers {
        // Which several may share.
        let library = manifest::provider(provider)?.0.folder_name();
        if !removed.contains(&library) {
            for name in store.remove(provider)? {
                let version = name.rsplit_once('-').map(|(_, version)| version);
                tell((provider, version), "removed", None, json)?;
            }
            removed.push(library);
        }
    }
    Ok(())
}

/// Refuses a name that is wrong before anything is done with the others.
fn all_known(providers: &[String]) -> Result<(), Error> {
    providers.iter().try_for_each(|name| manifest::provider(name).map(drop))
}

/// What was done with the library of a provider, in the version that is pulled or another; of one that was installed,
/// what it needs besides.
fn tell(
    (provider, version): (&str, Option<&str>),
    done: &str,
    path: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let (library, provider) = manifest::provider(provider)?;
    let version = version.unwrap_or(&library.version);
    if json {
        let line = json!({
            "provider": provider.name,
            "library": library.package,
            "version": version,
            "done": done,
            "path": path,
            "needs": provider.needs,
        });
        return print(format!("{line}\n"));
    }
    let place = path.map(|path| format!(" ({})", path.display())).unwrap_or_default();
    let (names, package) = (library.provider_names(), &library.package);
    print(harmless(format!("{names}: {package} {version} {done}{place}\n")))?;
    if done == "installed" && !provider.needs.is_empty() {
        print(format!("{} needs besides: {}\n", provider.name, provider.needs))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    #[test]
    fn the_help_names_every_provider_that_has_a_library() {
        let help =
            PullArgs::augment_args(clap::Command::new("pull")).render_long_help().to_string();
        let names: Vec<_> = manifest::provider_names().collect();
        let (last, others) = names.split_last().unwrap();
        let expected = format!("{} or {last}", others.join(", "));
        assert!(help.contains(&expected), "{help}");
    }

    #[test]
    fn a_library_for_other_machines_is_not_verified_unasked() {
        assert!(!may_be_there::<()>(&Err(Error::NoLibrary(String::new()))));
        assert!(may_be_there(&Ok(())));
    }

    #[test]
    fn libraries_are_not_on_the_hub() {
        let mut command = PullArgs::augment_args(clap::Command::new("pull"));
        let help = command.render_long_help().to_string();
        assert!(!help.contains("hub") && !help.contains(".zip"), "{help}");
        assert!(command.try_get_matches_from_mut(["pull", "--source", "hub"]).is_err());
        let asked = ["pull", "--source", "folder,pip", "--from", "x"];
        let found = PullArgs::from_arg_matches(&command.get_matches_from(asked)).unwrap();
        assert!(found.sources.sources().is_ok());
    }
}
