//! The texts that are measured with: the user's own, or generated ones of mixed lengths.

use std::path::Path;

use crate::cli::Failure;

/// Generated texts.
const GENERATED_TEXTS: usize = 1024;
/// Texts of the latency measurements.
const SHORT_TEXTS: usize = 64;
/// Words of a short text: a search query, a log line.
const SHORT_WORDS: usize = 8;
/// Texts that are read from a file.
const FILE_TEXTS_MAX: usize = 20_000;
/// Where generated lengths come from: share of the texts in percent, least and most words.
const LENGTHS: [(u64, u64, u64); 3] = [(50, 4, 14), (35, 15, 60), (15, 61, 160)];
/// Plain words, as they stand in logs and notes.
const WORDS: &str = "the a of to in for on with from after before while service disk network user \
    request memory process failed started stopped restarted timeout connection refused closed \
    opened kernel session login password invalid accepted server client file directory missing \
    permission denied full empty queue worker thread model vector text index search result query \
    answer question report invoice meeting travel weather river mountain garden kitchen music \
    letter number seven twelve error warning notice debug level high low retry again later today \
    yesterday tomorrow morning evening temperature pressure sensor reading normal critical update \
    installed removed version release package mirror checksum signature valid expired certificate";

/// Texts to measure with.
pub struct Corpus {
    /// What to print about where they come from.
    pub source: String,
    /// Texts for throughput.
    pub texts: Vec<String>,
    /// Short texts for latency.
    pub short: Vec<String>,
}

impl Corpus {
    /// Texts made from a seed; the same seed gives the same texts everywhere.
    pub fn generated(seed: u64) -> Self {
        let mut random = SplitMix(seed);
        let texts = (0..GENERATED_TEXTS).map(|_| {
            let words = length(&mut random);
            sentence(&mut random, words)
        });
        let texts = texts.collect();
        Self { source: format!("generated, seed {seed}"), texts, short: short() }
    }

    /// The lines of a file that are not blank.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display();
        let content = std::fs::read_to_string(path)
            .map_err(|error| Failure::refused(format!("can't read {name}: {error}")))?;
        let lines = content.lines().filter(|line| !line.trim().is_empty() && !line.contains('\0'));
        let texts: Vec<String> = lines.take(FILE_TEXTS_MAX).map(str::to_owned).collect();
        if texts.is_empty() {
            return Err(Failure::refused(format!("{name} has no texts")));
        }
        Ok(Self { source: name.to_string(), texts, short: short() })
    }

    /// The texts of call number `call` when each has `size`; they start over at the end.
    pub fn call(&self, call: usize, size: usize) -> impl Iterator<Item = usize> {
        let texts = self.texts.len();
        (call * size..(call + 1) * size).map(move |position| position % texts)
    }
}

fn short() -> Vec<String> {
    let mut random = SplitMix(0);
    (0..SHORT_TEXTS).map(|_| sentence(&mut random, SHORT_WORDS as u64)).collect()
}

fn length(random: &mut SplitMix) -> u64 {
    let mut percent = random.below(100);
    for (share, least, most) in LENGTHS {
        if percent < share {
            return least + random.below(most - least + 1);
        }
        percent -= share;
    }
    LENGTHS[0].1
}

fn sentence(random: &mut SplitMix, words: u64) -> String {
    let all: Vec<&str> = WORDS.split_whitespace().collect();
    let chosen: Vec<&str> =
        (0..words).map(|_| all[random.below(all.len() as u64) as usize]).collect();
    chosen.join(" ")
}

/// A generator whose numbers never change with a library's version.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; the bias is far below what a length distribution shows.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_texts() {
        let (one, same, other) = (Corpus::generated(1), Corpus::generated(1), Corpus::generated(2));
        assert_eq!(one.texts, same.texts);
        assert_ne!(one.texts, other.texts);
        assert_eq!(one.short, other.short);
        assert_eq!(SplitMix(0).next(), 0xe220_a839_7b1d_cdaf, "the published first number");
    }

    #[test]
    fn generated_lengths_are_mixed_as_stated() {
        let corpus = Corpus::generated(3);
        let words: Vec<usize> =
            corpus.texts.iter().map(|text| text.split_whitespace().count()).collect();
        let short = words.iter().filter(|words| **words <= 14).count() as f64 / words.len() as f64;
        assert!((0.4..0.6).contains(&short), "{short}");
        assert!(words.iter().all(|words| (4..=160).contains(words)));
        assert!(words.iter().any(|words| *words > 60));
    }

    #[test]
    fn calls_go_through_the_texts_and_start_over() {
        let corpus =
            Corpus { source: String::new(), texts: vec![String::new(); 5], short: Vec::new() };
        assert_eq!(corpus.call(1, 3).collect::<Vec<_>>(), [3, 4, 0]);
    }
}
