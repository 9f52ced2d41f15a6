//! How far the vectors of each precision are from those of f32, and whether pairs of texts are still
//! in the order that people put them in.

use std::collections::BTreeMap;
use std::path::Path;

use op_dbus_api::cosine;
use op_dbus_engine::Limits;
use serde::Serialize;

use super::corpus::{Corpus, calls};
use super::ranks::spearman;
use super::stage::{Stage, Target};
use super::variant::Facts;
use crate::cli::{Failure, check_text, decoded, unmarked};

/// Texts of each collection whose vectors are compared, and their tokens: the slowest model takes
/// some seconds for them.
const TEXTS_MAX: usize = 300;
const TOKENS_MAX: usize = 6_000;
/// Texts in one call.
const CALL_TEXTS: usize = 256;
/// Texts, the first of each collection, that are a call each: an accelerator replays small batches that it has
/// recorded, and their vectors are to be compared, too.
const ALONE_TEXTS: usize = 32;

/// Pairs of texts, each with the likeness that people saw.
pub struct Pairs {
    texts: Vec<String>,
    scores: Vec<f64>,
}

impl Pairs {
    /// Reads text, text and score, a tab between, one pair a line.
    ///
    /// # Errors
    /// A file that can't be read, the first line that is none of this or has a text that can't be sent, or scores
    /// that put nothing in order.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display();
        let content = std::fs::read(path)
            .map_err(|error| Failure::refused(format!("can't read {name}: {error}")))?;
        let content = decoded(unmarked(&content), &name.to_string())?;
        let mut pairs = Self { texts: Vec::new(), scores: Vec::new() };
        for (line, number) in content.lines().zip(1_u64..).filter(|(line, _)| !line.is_empty()) {
            let place = format!("{name}, line {number}");
            let parts: Vec<&str> = line.split('\t').collect();
            let score = parts.get(2).and_then(|score| score.trim().parse::<f64>().ok());
            let score = score.filter(|score| score.is_finite());
            let (Some(score), [one, other, _]) = (score, parts.as_slice()) else {
                return Err(Failure::refused(format!(
                    "{place}: not text, text and score, a number, with tabs between"
                )));
            };
            for text in [one, other] {
                check_text(text, Limits::default().text_bytes_max, &place)?;
            }
            pairs.texts.extend([(*one).to_owned(), (*other).to_owned()]);
            pairs.scores.push(score);
        }
        if pairs.scores.windows(2).all(|scores| scores[0] == scores[1]) {
            return Err(Failure::refused(format!(
                "{name} has no pairs to put in order: at least two need scores that differ"
            )));
        }
        Ok(pairs)
    }
}

/// How good the vectors of one variant are.
#[derive(Serialize)]
pub struct Quality {
    /// A few words for the variant.
    pub label: String,
    #[serde(flatten)]
    pub facts: Facts,
    /// By collection.
    pub cosine: Vec<Cosine>,
    /// Rank correlation (Spearman) of cosines with the scores of the pairs, times 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spearman: Option<f64>,
}

/// Cosines between a variant's vectors and those of f32 for the same texts.
#[derive(Debug, PartialEq, Serialize)]
pub struct Cosine {
    pub corpus: String,
    pub texts: usize,
    pub mean: f64,
    pub min: f64,
}

/// Compares every variant of every model with the model's first one in f32.
///
/// # Errors
/// No variant in f32, or a call that failed.
pub async fn measure(
    stage: &Stage,
    corpora: &[Corpus],
    pairs: Option<&Pairs>,
) -> Result<Vec<Quality>, Failure> {
    let facts: Vec<&Facts> = stage.targets.iter().map(|target| &target.facts).collect();
    let mut found = Vec::new();
    let mut references: BTreeMap<&str, Vec<Vec<f32>>> = BTreeMap::new();
    for (number, target) in stage.targets.iter().enumerate() {
        let same = |other: &Target| other.variant == target.variant;
        if stage.targets[..number].iter().any(same) {
            continue;
        }
        let model = target.facts.model.as_str();
        let is_reference = |t: &&Target| t.facts.model == model && t.facts.precision == "f32";
        let Some(reference) = stage.targets.iter().find(is_reference) else {
            return Err(Failure::usage(
                "--quality compares with f32: put it among the precisions, `--precision f32,…`",
            ));
        };
        let texts = compared(target, corpora).await?;
        if !references.contains_key(model) {
            references.insert(model, all_vectors(reference, &texts).await?);
        }
        let own = all_vectors(target, &texts).await?;
        let vectors = references[model].iter().zip(&own);
        let mut cosine = Vec::new();
        for ((corpus, texts), (one, other)) in corpora.iter().zip(&texts).zip(vectors) {
            let (mean, min) = mean_and_min(&cosines(one, other, texts.len()));
            cosine.push(Cosine { corpus: corpus.name.clone(), texts: texts.len(), mean, min });
        }
        let spearman = match pairs {
            Some(pairs) => {
                let found = vectors_of(target, &pairs.texts).await?;
                Some(100.0 * spearman(&likeness(&found, pairs.texts.len()), &pairs.scores))
            }
            None => None,
        };
        let label = target.facts.label(&facts);
        found.push(Quality { label, facts: target.facts.clone(), cosine, spearman });
    }
    Ok(found)
}

/// The first texts of each corpus, up to the limits.
async fn compared<'a>(
    target: &Target,
    corpora: &'a [Corpus],
) -> Result<Vec<&'a [String]>, Failure> {
    let mut chosen = Vec::new();
    for corpus in corpora {
        let texts = &corpus.texts[..corpus.texts.len().min(TEXTS_MAX)];
        let (tokens, _) = target.count_tokens(texts).await?;
        let sums = tokens.iter().scan(0, |sum, tokens| {
            *sum += tokens;
            Some(*sum)
        });
        let count = sums.take_while(|sum| *sum <= TOKENS_MAX).count().max(1);
        chosen.push(&texts[..count]);
    }
    Ok(chosen)
}

async fn all_vectors(target: &Target, texts: &[&[String]]) -> Result<Vec<Vec<f32>>, Failure> {
    let mut all = Vec::with_capacity(texts.len());
    for texts in texts {
        all.push(vectors_of(target, texts).await?);
    }
    Ok(all)
}

async fn vectors_of(target: &Target, texts: &[String]) -> Result<Vec<f32>, Failure> {
    let mut vectors = Vec::new();
    let (alone, rest) = texts.split_at(texts.len().min(ALONE_TEXTS));
    for texts in alone.chunks(1).chain(calls(rest, CALL_TEXTS)) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        vectors.extend(target.clients[0].embed(&texts).await?.vectors.into_numbers());
    }
    Ok(vectors)
}

/// Cosine of each row of `one` with the same row of `other`.
fn cosines(one: &[f32], other: &[f32], rows: usize) -> Vec<f64> {
    let dimensions = (one.len() / rows.max(1)).max(1);
    one.chunks(dimensions).zip(other.chunks(dimensions)).map(|(a, b)| cosine(a, b)).collect()
}

/// Cosine of each row with an even number with the row after it.
fn likeness(vectors: &[f32], rows: usize) -> Vec<f64> {
    let dimensions = (vectors.len() / rows.max(1)).max(1);
    let pairs = vectors.chunks_exact(2 * dimensions);
    pairs.map(|pair| cosine(&pair[..dimensions], &pair[dimensions..])).collect()
}

fn mean_and_min(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    (mean, values.iter().copied().fold(f64::INFINITY, f64::min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_scores_that_put_them_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let read = |content: &str| {
            let path = folder.path().join("pairs");
            std::fs::write(&path, content).unwrap();
            Pairs::read(&path).map(|pairs| pairs.scores).map_err(|error| error.message().to_owned())
        };
        assert_eq!(read("a\tb\t1\n\nc\td\t0.5\n"), Ok(vec![1.0, 0.5]));
        let marked = folder.path().join("marked");
        std::fs::write(&marked, "\u{feff}a\tb\t1\nc\td\t0.5\n").unwrap();
        assert_eq!(Pairs::read(&marked).ok().map(|pairs| pairs.texts[0].clone()), Some("a".into()));
        for score in ["nan", "inf", "x", ""] {
            let error = read(&format!("a\tb\t1\nc\td\t{score}\n")).unwrap_err();
            assert!(error.contains("line 2: not text"), "{error}");
        }
        let long = "x".repeat(Limits::default().text_bytes_max + 1);
        let error = read(&format!("a\tb\t1\n\n{long}\td\t0\n")).unwrap_err();
        assert!(error.contains("line 3: longer than"), "{error}");
        for same in ["", "a\tb\t1\n", "a\tb\t1\nc\td\t1.0\n"] {
            let error = read(same).unwrap_err();
            assert!(error.contains("scores that differ"), "{error}");
        }
    }

    #[test]
    fn rows_are_compared_with_rows() {
        let one = [1.0, 0.0, 0.0, 1.0];
        let other = [2.0, 0.0, 1.0, 1.0];
        let found = cosines(&one, &other, 2);
        assert!((found[0] - 1.0).abs() < 1e-9 && (found[1] - 0.5_f64.sqrt()).abs() < 1e-9);
        assert_eq!(likeness(&one, 2), [0.0]);
        let (mean, min) = mean_and_min(&[1.0, 0.5]);
        assert_eq!((mean, min), (0.75, 0.5));
    }
}
