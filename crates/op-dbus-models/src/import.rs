//! Taking over a model of the user's own: a sentence-transformers model of a family that the
//! compiler knows, or an ONNX graph that is run as it is.

use std::path::{Path, PathBuf};

use crate::config_files::{self, PROMPTS, WEIGHTS_BYTES_MAX};
use crate::describe::{self, Description};
use crate::error::{HookError, refuse};
use crate::place::Place;
use crate::progress::Progress;
use crate::staging::Writer;
use crate::{Error, Family, FileRecord, Model, Pooling, weights};

const WEIGHTS: &str = "model.safetensors";
/// The largest ONNX graph: its format ends there.
const ONNX_BYTES_MAX: u64 = 2 << 30;

/// What an inspector finds in a user's own ONNX graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnnxFacts {
    /// Numbers in one vector, when the graph states it.
    pub dimensions: Option<usize>,
    /// Whether the graph ends in one vector per text; else it ends in one vector per token.
    pub pooled: bool,
    /// Whether the name of that output tells that nothing is left to do to it.
    pub finished: bool,
}

/// Reads the bytes of an ONNX graph.
pub type Inspect<'a> = dyn Fn(&[u8]) -> Result<OnnxFacts, HookError> + 'a;

/// Reads the bytes of a `tokenizer.json`, for a model that reads so many tokens of a text: whether the
/// service could use it.
pub type TryTokenizer<'a> = dyn Fn(&[u8], usize) -> Result<(), HookError> + 'a;

/// Reads a model of a family as an engine does that is to compute it: whether all its tensors are there, or, where its
/// record lists no weights yet, whether they could be computed.
pub type TryModel<'a> = dyn Fn(&Model) -> Result<(), HookError> + 'a;

/// What an import needs besides the folder.
pub struct ImportOptions<'a> {
    /// The inspector for a user's own ONNX graph.
    pub inspect: &'a Inspect<'a>,
    /// Tries the tokenizer before the model's weights are copied.
    pub tokenizer: &'a TryTokenizer<'a>,
    /// Tries the model itself, unless it is a graph: before its weights are copied and before it is installed. What its
    /// configuration asks for and whether its tensors fit that is looked at by nobody else.
    pub model: &'a TryModel<'a>,
    /// Where the steps are told.
    pub progress: &'a Progress,
    /// Pooling of an ONNX graph that ends in token vectors and has no `1_Pooling` beside it, or of weights with neither
    /// `modules.json` nor what is saved beside it.
    pub pooling: Option<Pooling>,
    /// Numbers in one vector, for an ONNX graph without anything that states it.
    pub dimensions: Option<usize>,
    /// Token limit of an ONNX graph; it goes before what the files beside the graph state.
    pub max_input_tokens: Option<usize>,
}

/// Copies the model at `source` into `dir`, a folder of the store that `writer` may write.
pub(crate) fn bring(
    source: &Path,
    name: &str,
    writer: &Writer,
    dir: &Path,
    options: &ImportOptions<'_>,
) -> Result<Model, Error> {
    let (root, graph) = locate(source)?;
    let mut import = Import { place: Place::open(&root, MARKERS)?, dir, options };
    let is_asked_for = graph.is_some();
    let graph = graph.or_else(|| import.graph_instead_of_weights());
    // Whatever can be refused without the weights is refused before these are copied.
    let description = match &graph {
        Some(graph) => import.describe_graph(graph).map_err(|error| match is_asked_for {
            true => error,
            false => config_files::with_weights(&mut import.place, error),
        })?,
        None => describe::sentence_transformers(&mut import.place, options.pooling)?,
    };
    agree(options, &description)?;
    let (weights, copied_to, bytes_max) = match &graph {
        Some(graph) => (graph.as_str(), "model.onnx", ONNX_BYTES_MAX),
        None => (WEIGHTS, WEIGHTS, WEIGHTS_BYTES_MAX),
    };
    // What it takes at least: of 16-bit floats 32-bit ones are made, and a disk without room for these says so then.
    let files = description.files.iter().map(String::as_str).chain([weights]);
    let bytes = files.filter_map(|file| import.place.bytes(file)).fold(0, u64::saturating_add);
    writer.require_space(bytes)?;
    let mut files = Vec::new();
    for file in &description.files {
        files.push(import.copy(file, file, config_files::bytes_max(file))?);
    }
    import.try_tokenizer(description.max_input_tokens)?;
    let (layers, similarity) = (description.layers, description.similarity.clone());
    let mut staged = Model { dir: dir.to_owned(), ..model(name, source, description, files) };
    import.try_model(&staged)?;
    staged.files.insert(0, import.copy(weights, copied_to, bytes_max)?);
    if let Some(layers) = layers {
        note_layers(&mut staged, layers)?;
    }
    import.try_model(&staged)?;
    // Of vectors of length 1 the products are the cosines.
    let cosines = if staged.normalize { &["cosine", "dot"][..] } else { &["cosine"] };
    if let Some(other) = similarity.filter(|it| !cosines.contains(&it.as_str())) {
        options.progress.say(format_args!(
            "{name}: {PROMPTS} says similarity_fn_name {other}; here texts are ranked by cosine"
        ));
    }
    Ok(Model { dir: PathBuf::new(), ..staged })
}

fn model(name: &str, source: &Path, from: Description, files: Vec<FileRecord>) -> Model {
    let source = source.canonicalize().unwrap_or_else(|_| source.to_owned());
    Model {
        name: name.to_owned(),
        dir: PathBuf::new(),
        family: from.family,
        pooling: from.pooling,
        normalize: from.normalize,
        dimensions: from.dimensions,
        max_input_tokens: from.max_input_tokens,
        prompts: from.prompts,
        default_prompt: from.default_prompt,
        matryoshka: from.matryoshka,
        dense: from.dense,
        unusual: from.unusual,
        level: None,
        source: format!("folder: {}", source.display()),
        revision: String::new(),
        files,
    }
}

/// What tells the folder of a model inside an archive.
pub(crate) const MARKERS: &[&str] = &["modules.json", "tokenizer.json"];

/// The folder that a model's files lie in and, when `source` is itself a graph, its name in there.
fn locate(source: &Path) -> Result<(PathBuf, Option<String>), Error> {
    let is_graph = source.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("onnx"));
    if !is_graph || source.is_dir() {
        return Ok((source.to_owned(), None));
    }
    let fail = |error| Error::io("read", source, error);
    std::fs::metadata(source).map_err(fail)?;
    // Not where a link leads to: beside that lies another model's tokenizer.
    let source = std::path::absolute(source).map_err(fail)?;
    let parent = source.parent().unwrap_or(&source);
    // The usual layout has the graphs in `onnx/` and everything else beside that folder.
    let above = parent.parent().filter(|above| {
        !parent.join("tokenizer.json").exists() && above.join("tokenizer.json").exists()
    });
    let root = above.unwrap_or(parent);
    let graph = source.strip_prefix(root).unwrap_or(&source).to_string_lossy().into_owned();
    Ok((root.to_owned(), Some(graph)))
}

struct Import<'a> {
    place: Place,
    dir: &'a Path,
    options: &'a ImportOptions<'a>,
}

impl Import<'_> {
    /// A folder with a graph and no `model.safetensors` means the graph.
    fn graph_instead_of_weights(&self) -> Option<String> {
        let names = ["model.onnx", "onnx/model.onnx"];
        let graph = names.into_iter().find(|name| self.place.has(name));
        graph.filter(|_| !self.place.has(WEIGHTS)).map(str::to_owned)
    }

    /// Copies a file of at most `bytes_max` bytes; of weights, 16-bit floats become 32-bit ones.
    fn copy(&mut self, from: &str, to: &str, bytes_max: u64) -> Result<FileRecord, Error> {
        let step = self.options.progress.step(format!("folder: {from}"), self.place.bytes(from));
        let path = self.dir.join(to);
        let copied = self.place.copy(from, &path, bytes_max, |bytes| step.advance(bytes))?;
        let copied = copied.ok_or_else(|| config_files::lacks(&self.place, from))?;
        step.finish(copied.0);
        let widened = match to.ends_with(WEIGHTS) {
            true => weights::widen(self.dir, to)?,
            false => None,
        };
        let (bytes, sha256) = widened.unwrap_or(copied);
        Ok(FileRecord { path: to.to_owned(), bytes, sha256 })
    }

    /// Refuses a tokenizer that the service would refuse.
    fn try_tokenizer(&self, max_input_tokens: usize) -> Result<(), Error> {
        let path = self.dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|error| Error::io("read", &path, error))?;
        (self.options.tokenizer)(&bytes, max_input_tokens).map_err(|source| Error::Hook {
            what: "its tokenizer.json can't be used".to_owned(),
            source,
        })
    }

    /// Refuses a model of a family that the service would refuse, as far as it has been copied.
    fn try_model(&self, staged: &Model) -> Result<(), Error> {
        if staged.family == Family::Onnx {
            return Ok(());
        }
        let what = "the service could not load it".to_owned();
        (self.options.model)(staged).map_err(|source| Error::Hook { what, source })
    }

    fn describe_graph(&mut self, graph: &str) -> Result<Description, Error> {
        let bytes = self.place.read(graph, ONNX_BYTES_MAX)?;
        let bytes = bytes.ok_or_else(|| config_files::lacks(&self.place, graph))?;
        let facts = (self.options.inspect)(&bytes).map_err(|source| Error::Hook {
            what: "the ONNX graph cannot be understood".to_owned(),
            source,
        })?;
        drop(bytes);
        describe::onnx(&mut self.place, facts, self.options)
    }
}

/// Refuses numbers that are others than those of the model itself.
fn agree(options: &ImportOptions<'_>, model: &Description) -> Result<(), Error> {
    let says = [
        ("--dimensions", options.dimensions, model.dimensions),
        ("--max-input-tokens", options.max_input_tokens, model.max_input_tokens),
    ];
    for (flag, given, own) in says {
        if let Some(given) = given.filter(|given| *given != own) {
            return Err(refuse(
                format!("{flag} {given} for a model that itself says {own}"),
                format!("the model's own {own}, without {flag}"),
            ));
        }
    }
    Ok(())
}

/// Notes that there are more layers than the `stated` ones, which are computed: the others lie there unused.
fn note_layers(staged: &mut Model, stated: usize) -> Result<(), Error> {
    let found = weights::layers(&weights::read_header(&staged.dir, WEIGHTS)?);
    if stated < found {
        staged.unusual.push(format!("layers {stated}"));
    }
    Ok(())
}
