//! The texts that everybody embeds: of each corpus a sample with the lengths of the whole.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::competitor::Competitor;

/// Texts that quantisers look at.
const MIXTURE_TEXTS: usize = 300;

/// A sample of one corpus.
pub struct Sample {
    pub name: String,
    /// The whole corpus, for what takes a file of texts.
    pub whole: PathBuf,
    pub file: PathBuf,
    pub texts: usize,
    /// Mean tokens of a text.
    pub tokens_mean: f64,
    /// Operations for all of its texts, where the model's are known.
    pub operations: Option<f64>,
}

/// Writes the sample of a corpus, of about `tokens` tokens, into `folder`; `counter` counts them.
///
/// # Errors
/// A file that can't be read or has no texts, or a counter that fails.
pub fn sample(
    (name, path): (&str, &Path),
    (folder, tokens): (&Path, f64),
    counter: &mut Competitor,
) -> Result<Sample, String> {
    let content = read(path)?;
    let texts = sorted(&content, path)?;
    let file = folder.join(format!("{name}.txt"));
    let mean = |answer: &serde_json::Value| {
        let tokens: Vec<f64> =
            answer["tokens"].as_array().into_iter().flatten().filter_map(|t| t.as_f64()).collect();
        tokens.iter().sum::<f64>() / tokens.len().max(1) as f64
    };
    write(&file, &spread(&texts, 200))?;
    let question = json!({ "do": "tokens", "texts": &file });
    let roughly = mean(&counter.ask(&question)?).max(1.0);
    let chosen = spread(&texts, (tokens / roughly).ceil() as usize);
    write(&file, &chosen)?;
    let answer = counter.ask(&question)?;
    Ok(Sample {
        name: name.to_owned(),
        whole: path.to_owned(),
        texts: chosen.len(),
        tokens_mean: mean(&answer),
        operations: answer["operations"].as_f64(),
        file,
    })
}

/// Some texts of every corpus, one after the other: for quantisers to look at.
///
/// # Errors
/// As [`sample`].
pub fn mixture(corpora: &[(String, PathBuf)], to: &Path) -> Result<(), String> {
    let contents: Vec<String> =
        corpora.iter().map(|(_, path)| read(path)).collect::<Result<_, _>>()?;
    let mut all = Vec::new();
    for (content, (_, path)) in contents.iter().zip(corpora) {
        all.extend(spread(&sorted(content, path)?, MIXTURE_TEXTS / corpora.len().max(1)));
    }
    write(to, &all)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The lines that are not blank, by length.
fn sorted<'a>(content: &'a str, path: &Path) -> Result<Vec<&'a str>, String> {
    let mut texts: Vec<&str> = content.lines().filter(|line| !line.trim().is_empty()).collect();
    texts.sort_by_key(|text| (text.len(), *text));
    if texts.is_empty() { Err(format!("{} has no texts", path.display())) } else { Ok(texts) }
}

/// `wanted` texts at even distances in the order of length, and then mixed.
fn spread<'a>(sorted: &[&'a str], wanted: usize) -> Vec<&'a str> {
    let wanted = wanted.clamp(1, sorted.len());
    let place = |n: usize| (2 * n + 1) * sorted.len() / (2 * wanted);
    let even: Vec<&str> = (0..wanted).map(|n| sorted[place(n)]).collect();
    // A step without a common divisor visits each once.
    let step = (wanted * 5 / 8..).find(|step| divisor(*step, wanted) == 1).unwrap_or(1);
    (0..wanted).map(|n| even[n * step % wanted]).collect()
}

fn divisor(one: usize, other: usize) -> usize {
    if other == 0 { one } else { divisor(other, one % other) }
}

/// One text a line.
///
/// # Errors
/// The file can't be written.
pub fn write(path: &Path, texts: &[&str]) -> Result<(), String> {
    let content = texts.join("\n") + "\n";
    fs::write(path, content).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_each_length_and_no_text_twice() {
        let texts: Vec<String> = (0..100).map(|n| format!("{n:03}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        for wanted in [1, 2, 7, 10, 64, 100, 500] {
            let mut chosen = spread(&texts, wanted);
            assert_eq!(chosen.len(), wanted.min(100));
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!(chosen.len(), wanted.min(100), "{wanted}");
        }
        assert_eq!(spread(&texts, 1), ["050"]);
        let mut four = spread(&texts, 4);
        four.sort_unstable();
        assert_eq!(four, ["012", "037", "062", "087"]);
    }
}
