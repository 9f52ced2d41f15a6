//! Everybody who is measured, asked in turn; who fails is left out from then on, with the reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use super::competitor::{Competitor, Entry, Setting};
use super::statistics::{cosine, cosines, spearman};
use super::texts::{Sample, write};

/// Texts of each sample whose vectors are compared.
const COMPARED_TEXTS: usize = 100;

/// Tokens of a batch that everybody is tried with first.
const BATCH_TOKENS: usize = 512;

/// Everybody who is measured.
pub struct Field {
    pub competitors: Vec<Competitor>,
    pub missing: Vec<(&'static Entry, String)>,
}

/// Figures by competitor.
pub type By<T> = BTreeMap<Key, T>;
/// Who it is: library and precision.
pub type Key = (&'static str, &'static str);

/// What everybody did in all rounds.
pub struct Rates {
    /// Texts per second by sample and round.
    pub figures: By<Vec<Vec<f64>>>,
    /// Operations per second that the CPU can do, by round: an object with the precisions.
    pub peaks: Vec<Value>,
}

/// How good somebody's vectors are.
pub struct Quality {
    /// Mean and least cosine with ours in f32.
    pub cosine: (f64, f64),
    /// Rank correlation with the scores of the pairs, times 100.
    pub spearman: Option<f64>,
}

impl Entry {
    pub fn key(&self) -> Key {
        (self.library, self.precision)
    }
}

impl Field {
    /// Asks everybody, those after `first` before those up to it.
    fn each<T>(
        &mut self,
        first: usize,
        mut ask: impl FnMut(&mut Competitor) -> Result<T, String>,
    ) -> By<T> {
        let mut answers = By::new();
        let count = self.competitors.len();
        let mut failed = Vec::new();
        for turn in 0..count {
            let number = (turn + first) % count;
            let competitor = &mut self.competitors[number];
            match ask(competitor) {
                Ok(answer) => drop(answers.insert(competitor.entry.key(), answer)),
                Err(reason) => failed.push((number, reason)),
            }
        }
        failed.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        for (number, reason) in failed {
            let entry = self.competitors.remove(number).entry;
            println!("{} in {} is out: {reason}", entry.title, entry.precision);
            self.missing.push((entry, reason));
        }
        answers
    }

    /// Finds everybody's best setting on `sample`, and gives it to them. Ours comes as it is. The
    /// answer: texts per second by batch tokens, 512 and `sizes`.
    pub fn tune(
        &mut self,
        sample: &Sample,
        sizes: &[usize],
        seconds: f64,
    ) -> By<Vec<(usize, f64)>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let together = Setting { streams: 1, threads: cores, batch_tokens: BATCH_TOKENS };
        let apart = Setting { streams: cores, threads: 1, batch_tokens: BATCH_TOKENS };
        // The first pass of new settings is nobody's figure, here as in the rounds.
        let rate_with = |peer: &mut Competitor, setting: Setting| {
            peer.set(setting)?;
            peer.texts_per_s(&sample.file, 0.0)?;
            peer.texts_per_s(&sample.file, seconds)
        };
        let mut best: By<(f64, Setting)> = By::new();
        for setting in [together, apart] {
            let rates = self.each(0, |peer| match peer.entry.ours() && setting == apart {
                // Ours chooses its threads by itself.
                true => Ok(None),
                false => rate_with(peer, setting).map(Some),
            });
            for (key, rate) in rates.into_iter().filter_map(|(key, rate)| Some((key, rate?))) {
                consider(&mut best, key, setting, rate);
            }
        }
        let streams: By<Setting> = best_settings(&best);
        let first = |(rate, _): &(f64, Setting)| vec![(BATCH_TOKENS, *rate)];
        let mut curves: By<Vec<(usize, f64)>> =
            best.iter().map(|(key, best)| (*key, first(best))).collect();
        for (turn, size) in sizes.iter().copied().enumerate() {
            let rates = self.each(turn, |peer| {
                let setting = Setting { batch_tokens: size, ..streams[&peer.entry.key()] };
                Ok((setting, rate_with(peer, setting)?))
            });
            for (key, (setting, rate)) in rates {
                consider(&mut best, key, setting, rate);
                curves.entry(key).or_default().push((size, rate));
            }
        }
        let by_itself = Setting { batch_tokens: 0, ..together };
        let own = self.each(0, |peer| match peer.entry.ours() || !peer.own {
            true => Ok(None),
            false => rate_with(peer, by_itself).map(Some),
        });
        for (key, rate) in own.into_iter().filter_map(|(key, rate)| Some((key, rate?))) {
            consider(&mut best, key, by_itself, rate);
        }
        let chosen = best_settings(&best);
        self.each(0, |peer| match peer.entry.ours() {
            true => peer.set(by_itself),
            false => peer.set(chosen[&peer.entry.key()]),
        });
        curves
    }

    /// Texts per second of everybody on every sample, one figure for each round, and beside them
    /// the CPU's peak in each round.
    pub fn rounds(&mut self, samples: &[Sample], (rounds, seconds): (usize, f64)) -> Rates {
        let mut figures: By<Vec<Vec<f64>>> = By::new();
        let mut peaks = Vec::new();
        // The first pass of new settings is nobody's figure.
        self.each(0, |peer| peer.texts_per_s(&samples[0].file, 0.0));
        for round in 0..rounds {
            let start = Instant::now();
            let ours = self.competitors.iter_mut().find(|one| one.entry.ours());
            let peak = ours.and_then(|ours| ours.ask(&json!({ "do": "peak" })).ok());
            peaks.push(peak.unwrap_or_default());
            for (number, sample) in samples.iter().enumerate() {
                let rates = self.each(round, |peer| peer.texts_per_s(&sample.file, seconds));
                for (key, rate) in rates {
                    let by_sample =
                        figures.entry(key).or_insert_with(|| vec![Vec::new(); samples.len()]);
                    by_sample[number].push(rate);
                }
            }
            println!("round {} of {rounds}: {:.0} s", round + 1, start.elapsed().as_secs_f64());
        }
        drop_halves(&mut figures, rounds);
        Rates { figures, peaks }
    }

    /// Compares everybody's vectors with ours in f32.
    ///
    /// # Errors
    /// The files in `folder`, or pairs that are none.
    pub fn quality(
        &mut self,
        samples: &[Sample],
        pairs: Option<&Path>,
        folder: &Path,
    ) -> Result<By<Quality>, String> {
        let mut texts = Vec::new();
        for sample in samples {
            let all = fs::read_to_string(&sample.file).map_err(|e| format!("samples: {e}"))?;
            texts.extend(all.lines().take(COMPARED_TEXTS).map(str::to_owned));
        }
        let (text_file, pair_file) = (folder.join("compared.txt"), folder.join("pairs.txt"));
        write(&text_file, &texts.iter().map(String::as_str).collect::<Vec<_>>())?;
        let scores = match pairs {
            Some(pairs) => Some(split_pairs(pairs, &pair_file)?),
            None => None,
        };
        let to = folder.join("vectors.f32");
        let found = self.each(0, |peer| {
            let vectors = peer.vectors(&text_file, &to)?;
            let spearman = match &scores {
                Some(scores) => {
                    let pairs = peer.vectors(&pair_file, &to)?;
                    let likeness: Vec<f64> =
                        pairs.as_chunks::<2>().0.iter().map(|[a, b]| cosine(a, b)).collect();
                    Some(100.0 * spearman(&likeness, scores))
                }
                None => None,
            };
            Ok((vectors, spearman))
        });
        let reference = [("native", "f32"), ("ort", "f32")];
        let reference = reference.iter().find_map(|key| found.get(key));
        let (reference, _) = reference.ok_or("op-dbus has no vectors in f32 to compare with")?;
        Ok(found
            .iter()
            .map(|(key, (vectors, spearman))| {
                let cosine = cosines(reference, vectors);
                (*key, Quality { cosine, spearman: *spearman })
            })
            .collect())
    }
}

/// Forgets who was left out before the end: no other can be set beside that.
fn drop_halves(figures: &mut By<Vec<Vec<f64>>>, rounds: usize) {
    figures.retain(|_, by_sample| by_sample.iter().all(|of_rounds| of_rounds.len() == rounds));
}

/// Keeps the faster of two settings.
fn consider(best: &mut By<(f64, Setting)>, key: Key, setting: Setting, rate: f64) {
    let now = best.entry(key).or_insert((rate, setting));
    if rate > now.0 {
        *now = (rate, setting);
    }
}

fn best_settings(best: &By<(f64, Setting)>) -> By<Setting> {
    best.iter().map(|(key, (_, setting))| (*key, *setting)).collect()
}

/// Writes the texts of the pairs below each other and returns the scores.
fn split_pairs(pairs: &Path, to: &Path) -> Result<Vec<f64>, String> {
    let content = fs::read_to_string(pairs).map_err(|e| format!("{}: {e}", pairs.display()))?;
    let (mut texts, mut scores) = (Vec::new(), Vec::new());
    for (number, line) in content.lines().enumerate() {
        let parts: Vec<&str> = line.split('\t').collect();
        let score = parts.get(2).and_then(|score| score.trim().parse::<f64>().ok());
        let (Some(score), [one, other, _]) = (score, parts.as_slice()) else {
            let number = number + 1;
            return Err(format!("{}, line {number}: not text, text, score", pairs.display()));
        };
        texts.extend([*one, *other]);
        scores.push(score);
    }
    write(to, &texts)?;
    Ok(scores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_on_the_way_has_no_figures() {
        let (whole, half) = (("native", "f32"), ("torch", "f32"));
        let of =
            |key: Key| vec![vec![1.0, 2.0], if key == whole { vec![3.0, 4.0] } else { vec![] }];
        let mut figures = By::from([(whole, of(whole)), (half, of(half))]);
        drop_halves(&mut figures, 2);
        assert_eq!(figures.into_keys().collect::<Vec<_>>(), [whole]);
    }
}
