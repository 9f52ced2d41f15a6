//! Tokens that are named beside `tokenizer.json`: transformers adds those that it lacks, and leaves some out that are
//! not named.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::classes::CAMEMBERT;
use super::{ANEW, FILE, SETTINGS, SPECIALS, TokenizerConfig, TokenizerFile, content};
use crate::Error;
use crate::config_files::read;
use crate::error::refuse;
use crate::place::Place;

/// Where old versions of transformers keep them.
const OLD: &str = "added_tokens.json";

/// A token that is named.
struct Named<'a> {
    /// Where.
    file: &'static str,
    key: &'static str,
    token: &'a str,
    /// Its id, where that is said.
    id: Option<usize>,
}

/// Whether it is one of those that the class adds by itself, whose ids models have no rows for. A text with one in it
/// can't be computed, by transformers neither.
pub(super) fn is_unused(class: Option<&str>, token: &str) -> bool {
    class == Some(CAMEMBERT) && token.ends_with("NOTUSED")
}

/// Refuses those that would be added, or left out by a `class` with rules of its own. One that is a piece under the
/// same id is not counted as such.
pub(super) fn check(
    place: &mut Place,
    file: &TokenizerFile,
    told: &TokenizerConfig,
    class: Option<&str>,
) -> Result<(), Error> {
    // With a list of their own the settings are of a version that looks nowhere else.
    let (older, specials): (Option<Map<String, Value>>, Option<TokenizerConfig>) =
        match told.added_tokens_decoder {
            Some(_) => (None, None),
            None => (read(place, OLD)?, read(place, SPECIALS)?),
        };
    let older = older.iter().flatten().map(|(token, id)| {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        Named { file: OLD, key: "", token: token.as_str(), id }
    });
    let specials = specials.iter().flat_map(|old| special(SPECIALS, old));
    let mut all = listed(told).chain(special(SETTINGS, told)).chain(older).chain(specials);
    let added: HashSet<&str> = file.added_tokens.iter().map(|it| it.content.as_str()).collect();
    let pieces = file.model.vocab.by_piece();
    let is_piece = |named: &Named<'_>| {
        pieces.get(named.token).is_some_and(|own| named.id.is_none_or(|id| id == *own))
    };
    let is_lacking = |named: &Named<'_>| {
        !added.contains(named.token) && !is_piece(named) && !is_unused(class, named.token)
    };
    if let Some(Named { file, key, token, .. }) = all.find(is_lacking) {
        return Err(refuse(
            format!("{file} with the token `{token}`{key}, which {FILE} lacks"),
            format!("a {FILE} that has all of them {ANEW}, or {file} without it"),
        ));
    }
    // Since version 5 a class with rules of its own has the pieces, and of the others those that the settings name
    // where these have a list.
    let Some(class) = class.filter(|_| told.added_tokens_decoder.is_some()) else { return Ok(()) };
    let named = listed(told).chain(special(SETTINGS, told)).map(|named| named.token);
    let named: HashSet<&str> = named.chain(with_keys(told)).collect();
    let is_left_out = |token: &&str| !named.contains(token) && !pieces.contains_key(token);
    let tokens = file.added_tokens.iter().map(|it| it.content.as_str());
    match tokens.filter(|token| !token.is_empty()).find(is_left_out) {
        None => Ok(()),
        Some(token) => Err(refuse(
            format!(
                "{FILE} with the token `{token}`, which {SETTINGS} lacks in added_tokens_decoder, \
                 where a {class} has them from"
            ),
            format!(
                "a {FILE} without it {ANEW}, or the tokenizer_class PreTrainedTokenizerFast in \
                 {SETTINGS}, which takes it as it is"
            ),
        )),
    }
}

/// The special tokens that have a key each.
fn with_keys(told: &TokenizerConfig) -> impl Iterator<Item = &str> {
    let of_a_text = [&told.bos_token, &told.eos_token, &told.cls_token, &told.sep_token];
    let others = [&told.unk_token, &told.pad_token, &told.mask_token];
    of_a_text.into_iter().chain(others).filter_map(content)
}

/// Those of the settings' own list.
fn listed(told: &TokenizerConfig) -> impl Iterator<Item = Named<'_>> {
    let key = " in added_tokens_decoder";
    let tokens = told.added_tokens_decoder.iter().flatten();
    tokens.filter_map(move |(id, token)| {
        Some(Named { file: SETTINGS, key, token: content(token)?, id: id.parse().ok() })
    })
}

/// The special tokens beside those that have a key each.
fn special<'a>(file: &'static str, told: &'a TokenizerConfig) -> impl Iterator<Item = Named<'a>> {
    let lists = [
        (" in additional_special_tokens", &told.additional_special_tokens),
        (" in extra_special_tokens", &told.extra_special_tokens),
    ];
    lists.into_iter().flat_map(move |(key, list)| {
        let tokens: Vec<&Value> = match list {
            Value::Array(tokens) => tokens.iter().collect(),
            Value::Object(tokens) => tokens.values().collect(),
            _ => Vec::new(),
        };
        let tokens = tokens.into_iter().filter_map(content);
        tokens.map(move |token| Named { file, key, token, id: None })
    })
}
