//! What a model's own files say of it: family, pooling, lengths, prompts. Nothing is guessed; what
//! is not understood is refused with what was found and what is supported.

use std::collections::BTreeMap;

use crate::config_files::{
    Config, INPUT_TOKENS_MAX, PROMPTS, Prompts, cuts, input_tokens, optional, positions, read,
    read_family, read_prompts, read_tokenizer_limit, require, require_weights,
};
use crate::error::refuse;
use crate::import::{ImportOptions, OnnxFacts};
use crate::model::dense_paths;
use crate::modules::{Module, dense_outputs, read_dense, read_modules, read_normalize};
use crate::place::Place;
use crate::pooling::{PoolingConfig, done_pooling, read_pooling};
use crate::{Error, Family, Pooling, transformer};

/// Everything of a model but its weights and its name.
#[derive(Debug)]
pub(crate) struct Description {
    pub family: Family,
    pub pooling: Pooling,
    pub normalize: bool,
    pub dimensions: usize,
    pub max_input_tokens: usize,
    pub prompts: BTreeMap<String, String>,
    pub default_prompt: Option<String>,
    /// How sentence-transformers compares vectors of the model, where it is said.
    pub similarity: Option<String>,
    pub matryoshka: Vec<usize>,
    /// Blocks that `config.json` states.
    pub layers: Option<usize>,
    /// What of `config.json` the vectors depend on, where it is unusual.
    pub unusual: Vec<String>,
    /// The folders of the Dense modules between pooling and normalisation.
    pub dense: Vec<String>,
    /// The files to take over besides the weights.
    pub files: Vec<String>,
}

/// Describes a sentence-transformers model of a family that the compiler knows. Where nothing lists what follows the
/// Transformer, it is the pooling that is `given`.
pub(crate) fn sentence_transformers(
    place: &mut Place,
    given: Option<Pooling>,
) -> Result<Description, Error> {
    let modules: Option<Vec<Module>> = read(place, "modules.json")?;
    let modules = modules.as_deref().map(read_modules).transpose()?;
    let config: Config = require(place, "config.json")?;
    let family = read_family(&config)?;
    require_weights(place)?;
    let Some(width) = config.width().filter(|&width| width > 0) else {
        return Err(refuse(
            "config.json without a usable hidden_size (of DistilBERT: dim)",
            "a number of dimensions",
        ));
    };
    let mut files = vec!["tokenizer.json".to_owned(), "config.json".to_owned()];
    let mut unprompted = None;
    let (pooling, dense, normalize) = match modules {
        Some(modules) => {
            let file = format!("{}/config.json", modules.pooling);
            let stated: PoolingConfig = require(place, &file)?;
            let pooling = read_pooling(&stated, &file, width)?;
            agree(pooling, &file, given)?;
            unprompted = stated.unprompted(&file).map(str::to_owned);
            files.extend(["modules.json".to_owned(), file]);
            (pooling, modules.dense, modules.normalize)
        }
        None => (without_modules(place, given)?, Vec::new(), None),
    };
    let dimensions = read_dense(place, &dense, width)?;
    let normalize = read_normalize(place, normalize)?;
    let settings = transformer::read_settings(place)?;
    settings.check()?;
    let max_input_tokens = input_tokens(place, &config, family, settings.max_seq_length)?;
    let Prompts { prompts, default_prompt_name, similarity_fn_name, .. } =
        read_prompts(place, dimensions, unprompted.as_deref())?;
    files.extend(dense.iter().flat_map(|folder| dense_paths(folder)));
    files.extend(optional(place));
    Ok(Description {
        family,
        pooling,
        normalize,
        dimensions,
        max_input_tokens,
        prompts,
        default_prompt: default_prompt_name,
        similarity: similarity_fn_name,
        layers: config.layers(),
        unusual: config.unusual(family),
        matryoshka: cuts(config.matryoshka_dimensions, dimensions),
        dense: dense.into_iter().map(str::to_owned).collect(),
        files,
    })
}

/// Refuses a pooling that is given beside a file that states another.
fn agree(stated: Pooling, file: &str, given: Option<Pooling>) -> Result<(), Error> {
    match given.filter(|given| *given != stated) {
        None => Ok(()),
        Some(given) => Err(refuse(
            format!("--pooling {given} for a model whose {file} says {stated}"),
            format!("the model's own {stated}, without --pooling"),
        )),
    }
}

/// What follows the Transformer of a model that does not list it.
fn without_modules(place: &Place, given: Option<Pooling>) -> Result<Pooling, Error> {
    // sentence-transformers saves each of them with a list, which is lost then and may have had more.
    let saved = ["1_Pooling/config.json", PROMPTS, transformer::file(place)];
    let saved: Vec<&str> = saved.into_iter().filter(|file| place.has(file)).collect();
    if !saved.is_empty() {
        let (folder, saved) = (place.path().display(), saved.join(", "));
        return Err(refuse(
            format!("{folder} without modules.json, and with what is saved beside it ({saved})"),
            "the folder with its modules.json, which says the pooling then, or, where that lists nothing \
             behind the pooling, without those files and with --pooling",
        ));
    }
    given.ok_or_else(|| {
        refuse(
            format!("{} without modules.json, and no --pooling", place.path().display()),
            "either of them (with neither, sentence-transformers takes the mean, whatever the \
             model was trained for)",
        )
    })
}

/// Describes a user's own graph with the files that lie beside it, of which only `tokenizer.json`
/// must be there.
pub(crate) fn onnx(
    place: &mut Place,
    facts: OnnxFacts,
    options: &ImportOptions<'_>,
) -> Result<Description, Error> {
    let modules: Option<Vec<Module>> = read(place, "modules.json")?;
    let modules = modules.as_deref().map(read_modules).transpose()?;
    let dense = modules.as_ref().map_or(&[][..], |modules| &modules.dense);
    let behind = dense_outputs(place, dense)?;
    let holds_them = facts.finished && is_same(behind, facts.dimensions);
    if !dense.is_empty() && !holds_them {
        return Err(refuse(
            "an ONNX graph with Dense modules beside it that it does not hold",
            "Dense modules of a model in safetensors, or a graph that holds them itself and ends in \
             sentence_embedding, of the out_features of the last",
        ));
    }
    let (path, normalize) = match &modules {
        Some(modules) => (modules.pooling, read_normalize(place, modules.normalize)?),
        None => ("1_Pooling", false),
    };
    let config: Option<Config> = read(place, "config.json")?;
    let pooling_file = format!("{path}/config.json");
    let stated: Option<PoolingConfig> = read(place, &pooling_file)?;
    let width = stated.as_ref().and_then(|pooling| pooling.word_embedding_dimension);
    let width = width.or(config.as_ref().and_then(Config::width));
    let width = if dense.is_empty() { width } else { behind };
    // What is pooled in the graph may have gone through more there than these files tell of.
    let given = options.dimensions.filter(|_| facts.pooled && dense.is_empty());
    let dimensions = facts.dimensions.or(given).or(width).or(options.dimensions);
    let dimensions = dimensions.filter(|&dimensions| dimensions > 0);
    let Some(dimensions) = dimensions else {
        return Err(refuse(
            "an ONNX graph whose output has no fixed width, and no config.json that states it",
            "either of them, or --dimensions",
        ));
    };
    let unprompted = stated.as_ref().and_then(|stated| stated.unprompted(&pooling_file));
    let stated = match &stated {
        Some(stated) if facts.pooled => done_pooling(stated),
        Some(stated) => Some(read_pooling(stated, &pooling_file, dimensions)?),
        None => None,
    };
    let pooling = match stated {
        Some(stated) => agree(stated, &pooling_file, options.pooling).map(|()| stated)?,
        None => graph_pooling(facts.pooled, options.pooling)?,
    };
    let max_input_tokens = graph_limit(place, config.as_ref(), options)?;
    let Prompts { prompts, default_prompt_name, similarity_fn_name, .. } =
        read_prompts(place, dimensions, unprompted)?;
    let mut files = vec!["tokenizer.json".to_owned()];
    let others = ["config.json", "modules.json", pooling_file.as_str()];
    files.extend(others.into_iter().filter(|file| place.has(file)).map(str::to_owned));
    files.extend(optional(place));
    Ok(Description {
        family: Family::Onnx,
        pooling,
        normalize,
        dimensions,
        max_input_tokens,
        prompts,
        default_prompt: default_prompt_name,
        similarity: similarity_fn_name,
        matryoshka: config.map_or_else(Vec::new, |c| cuts(c.matryoshka_dimensions, dimensions)),
        layers: None,
        unusual: Vec::new(),
        dense: Vec::new(),
        files,
    })
}

/// Whether they are one, as far as they are stated.
fn is_same(stated: Option<usize>, found: Option<usize>) -> bool {
    stated.zip(found).is_none_or(|(stated, found)| stated == found)
}

/// What a graph leaves to do, or what is given, where no file beside it states that.
fn graph_pooling(pooled: bool, given: Option<Pooling>) -> Result<Pooling, Error> {
    match given {
        Some(_) if pooled => Err(refuse(
            "--pooling for an ONNX graph that ends in one vector per text",
            "--pooling for a graph that ends in one vector per token",
        )),
        Some(given) => Ok(given),
        // Of a graph that pools by itself, nothing is left to be pooled.
        None if pooled => Ok(Pooling::Mean),
        None => Err(refuse(
            "an ONNX graph that ends in one vector per token, and no 1_Pooling/config.json",
            "a graph that ends in one vector per text, a 1_Pooling folder, or --pooling",
        )),
    }
}

fn graph_limit(
    place: &mut Place,
    config: Option<&Config>,
    options: &ImportOptions<'_>,
) -> Result<usize, Error> {
    let settings = transformer::read_settings(place)?;
    settings.check_tokens()?;
    let own = settings.max_seq_length;
    let table = config.and_then(|config| Some((config, config.with_table()?)));
    let stated = match (options.max_input_tokens, table) {
        (Some(given), Some((config, family))) if given > positions(config, family)? => {
            let positions = positions(config, family)?;
            return Err(refuse(
                format!("--max-input-tokens {given}"),
                format!("1 to the {positions} positions that config.json leaves a text"),
            ));
        }
        (Some(given), _) => Some(given),
        (None, Some((config, family))) => Some(input_tokens(place, config, family, own)?),
        (None, None) => own.or(read_tokenizer_limit(place)?).or_else(|| {
            config
                .filter(|config| config.model_type.as_deref() == Some("bert"))
                .and_then(|config| config.max_position_embeddings)
        }),
    };
    stated.filter(|&limit| limit > 0 && limit <= INPUT_TOKENS_MAX).ok_or_else(|| {
        refuse(
            "an ONNX graph and no file that says how many tokens it takes",
            "sentence_bert_config.json, tokenizer_config.json with model_max_length, or \
             --max-input-tokens",
        )
    })
}
