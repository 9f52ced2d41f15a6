//! Text collections with their lengths in tokens, as each model reads them.

use serde::Serialize;

use super::corpus::Corpus;
use super::generated::candidates;
use super::stage::Stage;
use crate::cli::Failure;

/// Tokens of the short texts: a search query, a short log line.
pub const SHORT_TOKENS: usize = 15;
/// Short texts.
const SHORT_TEXTS: usize = 64;

/// A corpus and what each model sees of it.
pub struct Collection {
    pub corpus: Corpus,
    /// Nothing but the time of one text is measured with it.
    pub latency_alone: bool,
    /// By model.
    pub lengths: Vec<Lengths>,
}

/// Tokens of each text.
pub struct Lengths {
    pub model: String,
    /// After truncation, special tokens included.
    pub tokens: Vec<usize>,
    /// Texts that are longer than the model reads.
    pub truncated: usize,
}

/// How the lengths are distributed.
#[derive(Debug, PartialEq, Serialize)]
pub struct Distribution {
    pub model: String,
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub max: f64,
    pub truncated: usize,
}

impl Collection {
    /// The lengths as `model` sees them.
    pub fn lengths(&self, model: &str) -> &Lengths {
        // Every model of the stage has counted; the first one is always there.
        self.lengths.iter().find(|lengths| lengths.model == model).unwrap_or(&self.lengths[0])
    }
}

impl Lengths {
    pub fn distribution(&self) -> Distribution {
        let mut tokens: Vec<f64> = self.tokens.iter().map(|tokens| *tokens as f64).collect();
        tokens.sort_by(f64::total_cmp);
        Distribution {
            model: self.model.clone(),
            mean: tokens.iter().sum::<f64>() / tokens.len().max(1) as f64,
            p50: percentile(&tokens, 50.0),
            p95: percentile(&tokens, 95.0),
            max: percentile(&tokens, 100.0),
            truncated: self.truncated,
        }
    }
}

/// Short texts of one length, and the corpora.
///
/// # Errors
/// A service that does not count tokens.
pub async fn collections(stage: &Stage, corpora: Vec<Corpus>) -> Result<Vec<Collection>, Failure> {
    let mut collections =
        vec![Collection { corpus: short(stage).await?, latency_alone: true, lengths: Vec::new() }];
    let longer = |corpus| Collection { corpus, latency_alone: false, lengths: Vec::new() };
    collections.extend(corpora.into_iter().map(longer));
    for collection in &mut collections {
        for target in &stage.targets {
            let model = &target.facts.model;
            if collection.lengths.iter().any(|lengths| lengths.model == *model) {
                continue;
            }
            let (tokens, truncated) = target.count_tokens(&collection.corpus.texts).await?;
            collection.lengths.push(Lengths { model: model.clone(), tokens, truncated });
        }
    }
    Ok(collections)
}

/// Generated texts of [`SHORT_TOKENS`] tokens under the first model's tokenizer, or of as many as
/// the nearest of them has.
async fn short(stage: &Stage) -> Result<Corpus, Failure> {
    let texts = candidates(1..=SHORT_TOKENS as u64, SHORT_TEXTS);
    let mut tokens = vec![0; texts.len()];
    if let Some(target) = stage.targets.first() {
        tokens = target.count_tokens(&texts).await?.0;
    }
    let mut near: Vec<(usize, String)> =
        tokens.iter().map(|tokens| tokens.abs_diff(SHORT_TOKENS)).zip(texts).collect();
    near.sort_by_key(|(distance, _)| *distance);
    let least = near.first().map_or(0, |(distance, _)| *distance);
    let near = near.into_iter().filter(|(distance, _)| *distance == least);
    let texts: Vec<String> = near.map(|(_, text)| text).take(SHORT_TEXTS).collect();
    Ok(Corpus {
        name: format!("texts of {SHORT_TOKENS} tokens"),
        source: "generated".to_owned(),
        texts,
    })
}

/// The smallest value that `percent` of the values do not pass (nearest rank); zero for no values.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).or(sorted.last()).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_summed_up() {
        let lengths = Lengths { model: "m".into(), tokens: vec![1, 2, 3, 10], truncated: 1 };
        let Distribution { mean, p50, p95, max, .. } = lengths.distribution();
        assert_eq!((mean, p50, p95, max), (4.0, 2.0, 10.0, 10.0));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), 100.0);
        assert_eq!(percentile(&values, 99.0), 198.0);
        assert_eq!(percentile(&values, 100.0), 200.0);
        assert_eq!(percentile(&[7.0], 50.0), 7.0);
        assert_eq!(percentile(&[], 50.0), 0.0);
    }
}
