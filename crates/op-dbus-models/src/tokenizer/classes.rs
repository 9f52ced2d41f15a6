//! What transformers makes of a `tokenizer.json` by the class that the settings name: since version 5 most classes put
//! rules of their own in the place of the file's.

use serde_json::{Value, json};

use super::{ANEW, FILE, SETTINGS, TokenizerConfig, TokenizerFile, Vocabulary};
use crate::Error;
use crate::config_files::Config;
use crate::error::refuse;

/// What the classes put in the place of parts of a `tokenizer.json`.
#[derive(Clone, Copy, PartialEq)]
enum Rules {
    Bert,
    Mpnet,
    Roberta,
}

impl Rules {
    /// Those of a class; none where it takes the file as it is. In version 5 of transformers some classes are others
    /// under another name.
    fn of(class: &str) -> Result<Option<Self>, Error> {
        match class {
            "BertTokenizer"
            | "DistilBertTokenizer"
            | "DPRContextEncoderTokenizer"
            | "DPRQuestionEncoderTokenizer"
            | "ElectraTokenizer"
            | "LayoutLMTokenizer"
            | "LxmertTokenizer"
            | "MobileBertTokenizer"
            | "SqueezeBertTokenizer" => Ok(Some(Self::Bert)),
            "MPNetTokenizer" => Ok(Some(Self::Mpnet)),
            "BartTokenizer"
            | "LEDTokenizer"
            | "LongformerTokenizer"
            | "MvpTokenizer"
            | "RobertaTokenizer" => Ok(Some(Self::Roberta)),
            // The last two have rules of their own as well, which are not compared (docs/install.md).
            "PreTrainedTokenizer"
            | "TokenizersBackend"
            | "XLMRobertaTokenizer"
            | "CamembertTokenizer" => Ok(None),
            other => Err(refuse(
                format!("the tokenizer_class {other}"),
                format!(
                    "one whose rules are known (BertTokenizer, MPNetTokenizer, RobertaTokenizer, \
                     XLMRobertaTokenizer, CamembertTokenizer), or PreTrainedTokenizerFast in \
                     {SETTINGS}, which takes {FILE} as it is"
                ),
            )),
        }
    }
}

/// The class by which transformers reads the tokenizer.
fn class<'a>(told: &'a TokenizerConfig, config: Option<&'a Config>) -> Option<&'a str> {
    let of_config = || config.and_then(|config| config.tokenizer_class.as_deref());
    let of_type = || match config?.model_type.as_deref()? {
        "bert" | "distilbert" => Some("BertTokenizer"),
        "mpnet" => Some("MPNetTokenizer"),
        "roberta" => Some("RobertaTokenizer"),
        _ => None,
    };
    let class = told.tokenizer_class.as_deref().or_else(of_config).or_else(of_type)?;
    Some(class.strip_suffix("Fast").unwrap_or(class))
}

/// A switch of the settings, whether it is stated, and what the class does by it; its name in the file, and what is
/// done by that.
type Switch = (&'static str, Option<bool>, bool, &'static str, bool);

/// Compares what decides on the tokens with what the class makes of it.
pub(super) fn check(
    file: &TokenizerFile,
    told: &TokenizerConfig,
    config: Option<&Config>,
) -> Result<(), Error> {
    let Some(class) = class(told, config) else { return Ok(()) };
    let Some(rules) = Rules::of(class)? else { return Ok(()) };
    let switches = match rules {
        Rules::Bert | Rules::Mpnet => word_piece_switches(class, file, told)?,
        Rules::Roberta => byte_switches(class, file, told)?,
    };
    check_model((class, rules), &file.model, stated(&told.unk_token, "[UNK]"))?;
    let (cls, sep) = match rules {
        Rules::Bert => ("[CLS]", "[SEP]"),
        Rules::Mpnet | Rules::Roberta => ("<s>", "</s>"),
    };
    let (cls, sep) = (stated(&told.cls_token, cls), stated(&told.sep_token, sep));
    if around(&file.post_processor) != Some((cls, sep)) {
        let kind = format!("one with cls_token {cls} before a text and sep_token {sep} behind it");
        return Err(rebuilt(class, "post_processor", &file.post_processor, &kind));
    }
    for (key, stated, wanted, own_key, has) in switches {
        if wanted == has {
            continue;
        }
        let found = match stated {
            Some(_) => format!("{SETTINGS} with {key} {wanted}"),
            None => format!("no {key} in {SETTINGS}, which for a {class} means {wanted}"),
        };
        return Err(refuse(
            format!("{found}, and a {FILE} with {own_key} {has}"),
            format!("a {FILE} with {own_key} {wanted} {ANEW}, or {key} {has} in {SETTINGS}"),
        ));
    }
    Ok(())
}

/// What is compared of BERT's tokenizers.
fn word_piece_switches(
    class: &str,
    file: &TokenizerFile,
    told: &TokenizerConfig,
) -> Result<Vec<Switch>, Error> {
    let normalizer = &file.normalizer;
    check_kind(class, "normalizer", normalizer, "BertNormalizer")?;
    check_kind(class, "pre_tokenizer", &file.pre_tokenizer, "BertPreTokenizer")?;
    let own = |key: &str| normalizer[key].as_bool();
    if own("clean_text") == Some(false) {
        return Err(replaced(class, "clean_text false", "clean_text true"));
    }
    let lowers = told.do_lower_case.unwrap_or(true);
    let has_lower = own("lowercase").unwrap_or(true);
    // Accents go with the case, unless something is said of them.
    let strips = told.strip_accents.unwrap_or(lowers);
    let has_strip = own("strip_accents").unwrap_or(has_lower);
    let chinese = told.tokenize_chinese_chars;
    let has_chinese = own("handle_chinese_chars").unwrap_or(true);
    Ok(vec![
        ("do_lower_case", told.do_lower_case, lowers, "lowercase", has_lower),
        ("strip_accents", told.strip_accents, strips, "strip_accents", has_strip),
        (
            "tokenize_chinese_chars",
            chinese,
            chinese.unwrap_or(true),
            "handle_chinese_chars",
            has_chinese,
        ),
    ])
}

/// What is compared of RoBERTa's.
fn byte_switches(
    class: &str,
    file: &TokenizerFile,
    told: &TokenizerConfig,
) -> Result<Vec<Switch>, Error> {
    let (normalizer, splitter) = (&file.normalizer, &file.pre_tokenizer);
    check_kind(class, "pre_tokenizer", splitter, "ByteLevel")?;
    if !normalizer.is_null() {
        return Err(rebuilt(class, "normalizer", normalizer, "none"));
    }
    if splitter["use_regex"] == false {
        return Err(replaced(class, "use_regex false", "use_regex true"));
    }
    let has = splitter["add_prefix_space"].as_bool().unwrap_or(true);
    let wanted = told.add_prefix_space.unwrap_or(false);
    Ok(vec![("add_prefix_space", told.add_prefix_space, wanted, "add_prefix_space", has)])
}

/// Compares what makes pieces of words: of that these classes take from the file no more than the pieces and their
/// merges, since version 5.
fn check_model(
    (class, rules): (&str, Rules),
    model: &Vocabulary,
    unknown: &str,
) -> Result<(), Error> {
    let (kind, prefix) = (&model.kind, &model.continuing_subword_prefix);
    let parts = match rules {
        Rules::Roberta => [
            ("type", kind, json!("BPE")),
            ("continuing_subword_prefix", prefix, json!("")),
            ("end_of_word_suffix", &model.end_of_word_suffix, json!("")),
            ("ignore_merges", &model.ignore_merges, json!(false)),
        ],
        Rules::Bert | Rules::Mpnet => [
            ("type", kind, json!("WordPiece")),
            ("continuing_subword_prefix", prefix, json!("##")),
            ("unk_token", &model.unk_token, json!(unknown)),
            ("max_input_chars_per_word", &model.max_input_chars_per_word, json!(100)),
        ],
    };
    match parts.into_iter().find(|(_, found, anew)| !found.is_null() && *found != anew) {
        None => Ok(()),
        Some((key, found, anew)) => {
            Err(replaced(class, &format!("the {key} {found} in its model"), &anew.to_string()))
        }
    }
}

/// Refuses a part of another kind than the class makes anew, whatever the file has; transformers before
/// version 5 took such a part as it is.
fn check_kind(class: &str, part: &str, found: &Value, kind: &str) -> Result<(), Error> {
    if found["type"] == kind { Ok(()) } else { Err(rebuilt(class, part, found, kind)) }
}

/// The tokens before and behind a text, where there is one of either.
fn around(processor: &Value) -> Option<(&str, &str)> {
    match processor["type"].as_str()? {
        "BertProcessing" | "RobertaProcessing" => {
            Some((processor["cls"][0].as_str()?, processor["sep"][0].as_str()?))
        }
        "TemplateProcessing" => match processor["single"].as_array()?.as_slice() {
            [before, text, behind] if text["Sequence"]["id"] == "A" => Some((
                before["SpecialToken"]["id"].as_str()?,
                behind["SpecialToken"]["id"].as_str()?,
            )),
            _ => None,
        },
        "Sequence" => processor["processors"].as_array()?.iter().find_map(around),
        _ => None,
    }
}

/// A special token of the settings, or the class's own where they say nothing of it.
fn stated<'a>(told: &'a Value, own: &'a str) -> &'a str {
    told.as_str().or_else(|| told["content"].as_str()).unwrap_or(own)
}

fn rebuilt(class: &str, part: &str, found: &Value, kind: &str) -> Error {
    let found = found["type"].as_str().unwrap_or("none");
    replaced(class, &format!("the {part} {found}"), kind)
}

fn replaced(class: &str, found: &str, kind: &str) -> Error {
    refuse(
        format!("a {FILE} with {found}, in place of which a {class} puts {kind}"),
        format!(
            "{kind}, or the tokenizer_class PreTrainedTokenizerFast in {SETTINGS}, which takes it as it is"
        ),
    )
}
