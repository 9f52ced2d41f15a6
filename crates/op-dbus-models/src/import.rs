//! Taking over a model of the user's own: a sentence-transformers model of a family that the
//! compiler knows, or an ONNX graph that is run as it is.

use std::path::{Path, PathBuf};

use crate::config_files::{self, PROMPTS, WEIGHTS_BYTES_MAX};
use crate::describe::{self, Description};
use crate::error::{HookError, refuse};
use crate::place::Place;
use crate::progress::Progress;
use crate::shards::{self, Shards};
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

/// Copies the model at `source` into the folder `to.1` of the store that `to.0` may write.
pub(crate) fn bring(
    source: &Path,
    name: &str,
    to: (&Writer, &Path),
    options: &ImportOptions<'_>,
) -> Result<Model, Error> {
    let (root, graph) = locate(source)?;
    let mut import = Import { place: Place::open(&root, MARKERS)?, dir: to.1, options };
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
    let shards = if graph.is_some() { Shards::new() } else { import.shards()? };
    let encoder: Vec<&str> = match &graph {
        Some(graph) => vec![graph.as_str()],
        None if shards.is_empty() => vec![WEIGHTS],
        None => shards.keys().map(String::as_str).collect(),
    };
    to.0.require_space(peak_bytes(&mut import.place, &encoder, &description.files))?;
    let mut files = Vec::new();
    for file in &description.files {
        files.push(import.copy(file, file, config_files::bytes_max(file))?);
    }
    import.try_tokenizer(description.max_input_tokens)?;
    let (layers, similarity) = (description.layers, description.similarity.clone());
    let mut staged = Model { dir: to.1.to_owned(), ..model(name, source, description, files) };
    import.try_model(&staged)?;
    let weights = match &graph {
        Some(graph) => import.copy(graph, "model.onnx", ONNX_BYTES_MAX)?,
        None if shards.is_empty() => import.copy(WEIGHTS, WEIGHTS, WEIGHTS_BYTES_MAX)?,
        None => import.join(&shards)?,
    };
    staged.files.insert(0, weights);
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

/// Bytes of all that is large while it is copied: 16-bit floats lie there until 32-bit ones have been made
/// of them, and several files until there is one.
fn peak_bytes(place: &mut Place, encoder: &[&str], files: &[String]) -> u64 {
    let dense = files.iter().filter(|file| file.ends_with("/model.safetensors"));
    let (mut kept, mut beside, mut parts) = (0_u64, 0, 0_u64);
    for file in dense.map(String::as_str).chain(encoder.iter().copied()) {
        let bytes = place.bytes(file).unwrap_or(0);
        let is_weights = file.ends_with(".safetensors");
        if is_weights && file != WEIGHTS && !file.ends_with("/model.safetensors") {
            parts = parts.saturating_add(bytes);
        }
        let halves = match is_weights {
            true => place.with(file, |from, _| Ok(weights::bytes_of_halves(from))),
            false => Ok(None),
        };
        let halves = halves.ok().flatten().unwrap_or(0);
        kept = kept.saturating_add(bytes).saturating_add(halves);
        beside = if halves > 0 { bytes.max(beside) } else { beside };
    }
    kept.saturating_add(parts.max(beside))
}

struct Import<'a> {
    place: Place,
    dir: &'a Path,
    options: &'a ImportOptions<'a>,
}

impl Import<'_> {
    /// A folder with a graph and no safetensors means the graph.
    fn graph_instead_of_weights(&self) -> Option<String> {
        let names = ["model.onnx", "onnx/model.onnx"];
        let graph = names.into_iter().find(|name| self.place.has(name));
        graph.filter(|_| !config_files::has_weights(&self.place)).map(str::to_owned)
    }

    /// The files of weights that are in several; none where there is one.
    fn shards(&mut self) -> Result<Shards, Error> {
        if self.place.has(WEIGHTS) { Ok(Shards::new()) } else { shards::read(&mut self.place) }
    }

    /// Copies weights in several files, and makes one of them.
    fn join(&mut self, shards: &Shards) -> Result<FileRecord, Error> {
        let (mut left, mut headers, mut parts) = (WEIGHTS_BYTES_MAX, 0, Vec::new());
        for (file, listed) in shards {
            let bytes = self.fetch(file, file, left)?.0;
            left -= bytes;
            let header = weights::read_header(self.dir, file)?;
            shards::check(file, listed, &header)?;
            // All of them are held at once.
            headers += bytes - header.data_len() as u64;
            weights::check_headers(headers)?;
            parts.push((self.dir.join(file), header));
        }
        let (bytes, sha256) = weights::join(&parts, &self.dir.join(WEIGHTS))?;
        Ok(FileRecord { path: WEIGHTS.to_owned(), bytes, sha256 })
    }

    fn copy(&mut self, from: &str, to: &str, bytes_max: u64) -> Result<FileRecord, Error> {
        let (bytes, sha256) = self.fetch(from, to, bytes_max)?;
        let is_weights = to.ends_with(WEIGHTS);
        let widened = is_weights.then(|| weights::widen(self.dir, to)).transpose()?.flatten();
        let (bytes, sha256) = widened.unwrap_or((bytes, sha256));
        Ok(FileRecord { path: to.to_owned(), bytes, sha256 })
    }

    /// Copies a file as it is; returns its size, at most `bytes_max`, and SHA-256.
    fn fetch(&mut self, from: &str, to: &str, bytes_max: u64) -> Result<(u64, String), Error> {
        let step = self.options.progress.step(format!("folder: {from}"), self.place.bytes(from));
        let path = self.dir.join(to);
        let copied = self.place.copy(from, &path, bytes_max, |bytes| step.advance(bytes))?;
        let Some((bytes, sha256)) = copied else {
            return Err(config_files::lacks(&self.place, from));
        };
        step.finish(bytes);
        Ok((bytes, sha256))
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

#[cfg(test)]
mod tests {
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn halves_need_room_for_what_is_made_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, element| {
            let tensor =
                TensorView::new(element, vec![4096 / element.bitsize()], &[0; 512]).unwrap();
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let bytes = safetensors::serialize([("linear.weight", tensor)], None).unwrap();
            std::fs::write(path, &bytes).unwrap();
            bytes.len() as u64
        };
        let encoder = write("model.safetensors", Dtype::BF16);
        let dense = write("2_Dense/model.safetensors", Dtype::F32);
        let mut place = Place::folder(folder.path()).unwrap();
        let mut peak = |encoder: &[&str], files: &[&str]| {
            let files: Vec<_> = files.iter().map(|&file| file.to_owned()).collect();
            peak_bytes(&mut place, encoder, &files)
        };
        assert_eq!(peak(&[WEIGHTS], &["config.json"]), 2 * encoder + 512);
        assert_eq!(peak(&[WEIGHTS], &["2_Dense/model.safetensors"]), 2 * encoder + 512 + dense);
        let encoder = write(WEIGHTS, Dtype::F32);
        assert_eq!(peak(&[WEIGHTS], &["config.json"]), encoder);
        let [one, two] = [("a.safetensors", Dtype::F16), ("b-model.safetensors", Dtype::F32)]
            .map(|(name, element)| write(name, element));
        assert_eq!(peak(&["a.safetensors", "b-model.safetensors"], &[]), 2 * (one + two) + 512);
    }
}
