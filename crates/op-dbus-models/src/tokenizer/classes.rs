//! What transformers makes of a `tokenizer.json` by the class that the settings name: since version 5 most classes put
//! rules of their own in the place of the file's.

use std::slice;

use serde_json::{Value, json};

use super::{ANEW, FILE, SETTINGS, TokenizerConfig, TokenizerFile, Vocabulary, content, list};
use crate::Error;
use crate::config_files::Config;
use crate::error::refuse;

/// What the classes put in the place of parts of a `tokenizer.json`.
#[derive(Clone, Copy, PartialEq)]
enum Rules {
    Bert,
    Mpnet,
    Roberta,
    Unigram,
}

impl Rules {
    /// Those of a class; none where it takes the file as it is, a prefix space aside. In version 5 of transformers some
    /// classes are others under another name.
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
            XLM_ROBERTA | CAMEMBERT => Ok(Some(Self::Unigram)),
            "PreTrainedTokenizer" | "TokenizersBackend" => Ok(None),
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

const XLM_ROBERTA: &str = "XLMRobertaTokenizer";
pub(super) const CAMEMBERT: &str = "CamembertTokenizer";

/// The class by which transformers reads the tokenizer.
fn class<'a>(told: &'a TokenizerConfig, config: Option<&'a Config>) -> Option<&'a str> {
    let of_config = || config.and_then(|config| config.tokenizer_class.as_deref());
    let of_type = || match config?.model_type.as_deref()? {
        "bert" | "distilbert" => Some("BertTokenizer"),
        "mpnet" => Some("MPNetTokenizer"),
        "roberta" => Some("RobertaTokenizer"),
        "xlm-roberta" => Some(XLM_ROBERTA),
        "camembert" => Some(CAMEMBERT),
        _ => None,
    };
    let class = told.tokenizer_class.as_deref().or_else(of_config).or_else(of_type)?;
    Some(class.strip_suffix("Fast").unwrap_or(class))
}

/// A switch of the settings, what they say, and what holds where they say nothing; its name in the file, and what that
/// says.
type Switch = (&'static str, Option<bool>, bool, &'static str, bool);

/// Compares what decides on the tokens with what the class makes of it. Returns the class if it has rules of its own.
pub(super) fn check<'a>(
    file: &TokenizerFile,
    told: &'a TokenizerConfig,
    config: Option<&'a Config>,
) -> Result<Option<&'a str>, Error> {
    let splitter = &file.pre_tokenizer;
    // Of this one versions 4.48 to 4.57 of transformers make what the settings say, whatever the class.
    if splitter["type"] == "ByteLevel" {
        let has = splitter["add_prefix_space"].as_bool().unwrap_or(true);
        agree("", (PREFIX, told.add_prefix_space, false, PREFIX, has))?;
    }
    let Some(class) = class(told, config) else { return Ok(None) };
    let Some(rules) = Rules::of(class)? else { return Ok(None) };
    let switches = match rules {
        Rules::Bert | Rules::Mpnet => word_piece_switches(class, file, told)?,
        Rules::Roberta => check_bytes(class, file).map(|()| Vec::new())?,
        Rules::Unigram => unigram_switches(class, file, told)?,
    };
    check_model((class, rules), &file.model, stated(&told.unk_token, "[UNK]"))?;
    check_around(class, file, special_tokens(rules, told))?;
    let of_class = format!("for a {class} ");
    switches.into_iter().try_for_each(|switch| agree(&of_class, switch))?;
    Ok(Some(class))
}

const PREFIX: &str = "add_prefix_space";

/// Refuses a switch that is on in one of the files and off in the other.
fn agree(of_class: &str, (key, stated, unstated, own_key, has): Switch) -> Result<(), Error> {
    let wanted = stated.unwrap_or(unstated);
    if wanted == has {
        return Ok(());
    }
    let found = match stated {
        Some(_) => format!("{SETTINGS} with {key} {wanted}"),
        None => format!("no {key} in {SETTINGS}, which {of_class}means {wanted}"),
    };
    Err(refuse(
        format!("{found}, and a {FILE} with {own_key} {has}"),
        format!("a {FILE} with {own_key} {wanted} {ANEW}, or {key} {has} in {SETTINGS}"),
    ))
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
    let TokenizerConfig { do_lower_case, strip_accents, tokenize_chinese_chars, .. } = *told;
    let has_lower = own("lowercase").unwrap_or(true);
    // Accents go with the case, unless something is said of them.
    let strips = do_lower_case.unwrap_or(true);
    let has_strip = own("strip_accents").unwrap_or(has_lower);
    let chinese = "handle_chinese_chars";
    let has_chinese = own(chinese).unwrap_or(true);
    Ok(vec![
        ("do_lower_case", do_lower_case, true, "lowercase", has_lower),
        ("strip_accents", strip_accents, strips, "strip_accents", has_strip),
        ("tokenize_chinese_chars", tokenize_chinese_chars, true, chinese, has_chinese),
    ])
}

/// Compares RoBERTa's.
fn check_bytes(class: &str, file: &TokenizerFile) -> Result<(), Error> {
    let (normalizer, splitter) = (&file.normalizer, &file.pre_tokenizer);
    check_kind(class, "pre_tokenizer", splitter, "ByteLevel")?;
    if !normalizer.is_null() {
        return Err(rebuilt(class, "normalizer", normalizer, "none"));
    }
    if splitter["use_regex"] == false {
        return Err(replaced(class, "use_regex false", "use_regex true"));
    }
    Ok(())
}

/// What is compared of sentencepiece's, which take its table of characters from the file. What else its normalizers do
/// is done to white space, on which the classes split in any case (docs/install.md).
fn unigram_switches(
    class: &str,
    file: &TokenizerFile,
    told: &TokenizerConfig,
) -> Result<Vec<Switch>, Error> {
    let (normalizer, splitter) = (&file.normalizer, &file.pre_tokenizer);
    let known = ["Precompiled", "Strip", "Replace"];
    if !normalizer.is_null() && !is_all_of(normalizer, "normalizers", &known) {
        return Err(rebuilt(class, "normalizer", normalizer, "Precompiled"));
    }
    let is_known = is_all_of(splitter, "pretokenizers", &["WhitespaceSplit", "Metaspace"]);
    let mut parts = list(splitter, "pretokenizers").iter().chain([splitter]);
    let space = parts.find(|part| part["type"] == "Metaspace").filter(|_| is_known);
    let Some(space) = space else {
        return Err(rebuilt(class, "pre_tokenizer", splitter, "WhitespaceSplit and Metaspace"));
    };
    let scheme = if told.add_prefix_space.unwrap_or(true) { "always" } else { "never" };
    let is_other = |key: &str, own: Value| !space[key].is_null() && space[key] != own;
    let parts = [
        ("prepend_scheme", space["prepend_scheme"] == "first", scheme),
        ("replacement", is_other("replacement", json!("▁")), "▁"),
        ("split", is_other("split", json!(true)), "true"),
    ];
    if let Some((key, _, anew)) = parts.into_iter().find(|(_, is_other, _)| *is_other) {
        return Err(replaced(class, &format!("the {key} {} of its Metaspace", space[key]), anew));
    }
    let own_key = "add_prefix_space (prepend_scheme)";
    Ok(vec![(PREFIX, told.add_prefix_space, true, own_key, space["prepend_scheme"] != "never")])
}

/// Whether a part, or of a sequence all that are listed under the key, is of these kinds.
fn is_all_of(part: &Value, key: &str, kinds: &[&str]) -> bool {
    match part["type"].as_str() {
        Some("Sequence") => list(part, key).iter().all(|part| is_all_of(part, key, kinds)),
        kind => kind.is_some_and(|kind| kinds.contains(&kind)),
    }
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
        // CamemBERT's has the id of its unk_token.
        Rules::Unigram => vec![
            ("type", kind, json!("Unigram")),
            ("byte_fallback", &model.byte_fallback, json!(false)),
            ("unk_id", if class == XLM_ROBERTA { &model.unk_id } else { &Value::Null }, json!(3)),
        ],
        Rules::Roberta => vec![
            ("type", kind, json!("BPE")),
            ("continuing_subword_prefix", prefix, json!("")),
            ("end_of_word_suffix", &model.end_of_word_suffix, json!("")),
            ("ignore_merges", &model.ignore_merges, json!(false)),
        ],
        Rules::Bert | Rules::Mpnet => vec![
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

/// The tokens that are put before and behind a text, with their keys in the settings.
fn special_tokens(rules: Rules, told: &TokenizerConfig) -> [(&'static str, &str); 2] {
    match rules {
        Rules::Bert => [
            ("cls_token", stated(&told.cls_token, "[CLS]")),
            ("sep_token", stated(&told.sep_token, "[SEP]")),
        ],
        Rules::Mpnet | Rules::Roberta => [
            ("cls_token", stated(&told.cls_token, "<s>")),
            ("sep_token", stated(&told.sep_token, "</s>")),
        ],
        Rules::Unigram => [
            ("bos_token", stated(&told.bos_token, "<s>")),
            ("eos_token", stated(&told.eos_token, "</s>")),
        ],
    }
}

/// Compares the tokens around a text and their ids, which since version 5 are those of the vocabulary.
fn check_around(
    class: &str,
    file: &TokenizerFile,
    [(key, before), (other_key, behind)]: [(&str, &str); 2],
) -> Result<(), Error> {
    let processor = &file.post_processor;
    let is_same = |found: &[(&str, &Value); 2]| found.map(|(token, _)| token) == [before, behind];
    let Some(found) = around(processor).filter(is_same) else {
        let kind =
            format!("one with {key} {before} before a text and {other_key} {behind} behind it");
        return Err(rebuilt(class, "post_processor", processor, &kind));
    };
    let pieces = file.model.vocab.by_piece();
    for (token, ids) in found {
        let added = || file.added_tokens.iter().find(|added| added.content == token);
        let id = pieces.get(token).copied().or_else(|| Some(added()?.id));
        let has = ids.as_array().map_or(slice::from_ref(ids), Vec::as_slice);
        if let Some(id) = id.filter(|id| !ids.is_null() && has != [json!(id)]) {
            let found = format!("the id {ids} of {token} in its post_processor");
            return Err(replaced(class, &found, &id.to_string()));
        }
    }
    Ok(())
}

/// The tokens before and behind a text, each with its id or the list of its ids, where there is one of either.
fn around<'a>(processor: &'a Value) -> Option<[(&'a str, &'a Value); 2]> {
    let one = |pair: &'a Value| Some((pair[0].as_str()?, &pair[1]));
    let special = |part: &'a Value| {
        let token = part["SpecialToken"]["id"].as_str()?;
        Some((token, &processor["special_tokens"][token]["ids"]))
    };
    match processor["type"].as_str()? {
        "BertProcessing" | "RobertaProcessing" => {
            Some([one(&processor["cls"])?, one(&processor["sep"])?])
        }
        "TemplateProcessing" => match processor["single"].as_array()?.as_slice() {
            [before, text, behind] if text["Sequence"]["id"] == "A" => {
                Some([special(before)?, special(behind)?])
            }
            _ => None,
        },
        "Sequence" => processor["processors"].as_array()?.iter().find_map(around),
        _ => None,
    }
}

/// A special token of the settings, or the class's own where they say nothing of it.
fn stated<'a>(told: &'a Value, own: &'a str) -> &'a str {
    content(told).unwrap_or(own)
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
