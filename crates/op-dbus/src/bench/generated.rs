//! Texts made from a seed: plain words in the shapes that services are given.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::random::Random;

/// Plain words, as they stand in logs and notes.
const WORDS: &str = "the a of to in for on with from after before while service disk network user \
    request memory process failed started stopped restarted timeout connection refused closed \
    opened kernel session login password invalid accepted server client file directory missing \
    permission denied full empty queue worker thread model vector text index search result query \
    answer question report invoice meeting travel weather river mountain garden kitchen music \
    letter number seven twelve error warning notice debug level high low retry again later today \
    yesterday tomorrow morning evening temperature pressure sensor reading normal critical update \
    installed removed version release package mirror checksum signature valid expired certificate";
/// Words of a passage's sentences, but for its last, which may be shorter.
const SENTENCE: (u64, u64) = (5, 25);

/// A share of the texts in percent, and the least and the most words that they have.
type Lengths = (u64, u64, u64);

/// What a generated text looks like. Words are what blanks stand between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mixed,
    Logs,
    Sentences,
    Passages,
}

impl Kind {
    /// Its name, what its texts are, and their lengths.
    const fn row(self) -> (&'static str, &'static str, &'static [Lengths]) {
        match self {
            Self::Mixed => ("mixed", "plain words", &[(50, 4, 14), (35, 15, 60), (15, 61, 160)]),
            Self::Logs => ("logs", "log lines", &[(100, 6, 30)]),
            Self::Sentences => ("sentences", "sentences", &[(100, 5, 40)]),
            Self::Passages => ("passages", "passages of several sentences", &[(100, 60, 200)]),
        }
    }

    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Its texts and how their lengths are distributed.
    pub fn stated(self) -> String {
        let (_, texts, lengths) = self.row();
        let of = |(share, least, most): &Lengths| match share {
            100 => format!("{least} to {most} words"),
            share => format!("{share} % of {least} to {most} words"),
        };
        let lengths: Vec<String> = lengths.iter().map(of).collect();
        format!("{texts}, {}, evenly distributed", lengths.join(", "))
    }

    /// A text of a length that the kind has.
    pub fn text(self, random: &mut Random) -> String {
        let words = length(self.row().2, random);
        match self {
            Self::Mixed => plain(random, words).join(" "),
            Self::Logs => log_line(random, words),
            Self::Sentences => sentence(random, words),
            Self::Passages => passage(random, words),
        }
    }
}

impl ValueEnum for Kind {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Mixed, Self::Logs, Self::Sentences, Self::Passages]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.stated()))
    }
}

/// Plain candidates for texts of one length, from short to long.
pub fn candidates(words: std::ops::RangeInclusive<u64>, each: usize) -> Vec<String> {
    let mut random = Random::new(0);
    let lengths = words.flat_map(|words| vec![words; each]);
    lengths.map(|words| plain(&mut random, words).join(" ")).collect()
}

/// A number below `end`; the bias is far below what a length distribution shows.
fn below(random: &mut Random, end: u64) -> u64 {
    random.next() % end
}

fn length(lengths: &[Lengths], random: &mut Random) -> u64 {
    let mut percent = below(random, 100);
    for (share, least, most) in lengths {
        if percent < *share {
            return least + below(random, most - least + 1);
        }
        percent -= share;
    }
    lengths[0].1
}

fn plain(random: &mut Random, words: u64) -> Vec<&'static str> {
    let all: Vec<&str> = WORDS.split_whitespace().collect();
    (0..words).map(|_| all[below(random, all.len() as u64) as usize]).collect()
}

/// A time, who says it, and what: words with numbers, paths and punctuation between them.
fn log_line(random: &mut Random, words: u64) -> String {
    let mut parts: Vec<String> = plain(random, words).into_iter().map(str::to_owned).collect();
    for part in &mut parts[2..] {
        let number = below(random, 100_000);
        match below(random, 10) {
            0 => *part = format!("/var/lib/{part}/{number}.log"),
            1 => *part = format!("{part}={number}"),
            2 => *part = number.to_string(),
            3 => part.push(','),
            _ => {}
        }
    }
    let [month, day, hour, minute] = [12, 28, 24, 60].map(|end| below(random, end));
    parts[0] = format!("2025-{:02}-{:02}T{hour:02}:{minute:02}:00Z", month + 1, day + 1);
    parts[1] = format!("{}[{}]:", parts[1], below(random, 100_000));
    parts.join(" ")
}

fn sentence(random: &mut Random, words: u64) -> String {
    let mut text = plain(random, words).join(" ") + ".";
    text[..1].make_ascii_uppercase();
    text
}

fn passage(random: &mut Random, words: u64) -> String {
    let (mut sentences, mut left) = (Vec::new(), words);
    while left > 0 {
        let (least, most) = SENTENCE;
        let words = (least + below(random, most - least + 1)).min(left);
        sentences.push(sentence(random, words));
        left -= words;
    }
    sentences.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(kind: Kind) -> Vec<String> {
        let mut random = Random::new(3);
        (0..1000).map(|_| kind.text(&mut random)).collect()
    }

    #[test]
    fn lengths_are_as_stated() {
        for kind in Kind::value_variants() {
            let words: Vec<u64> =
                texts(*kind).iter().map(|text| text.split(' ').count() as u64).collect();
            let (_, _, lengths) = kind.row();
            let mut all = 0;
            for (share, least, most) in lengths {
                let within = words.iter().filter(|words| (least..=most).contains(words)).count();
                let percent = within as u64 / 10;
                assert!(percent.abs_diff(*share) < 5, "{kind:?}: {percent} % of {least} to {most}");
                assert!(kind.stated().contains(&format!("{least} to {most} words")));
                all += within;
            }
            assert_eq!(all, words.len(), "{kind:?}");
            let (_, least, most) = lengths[0];
            let lower = |words: &&u64| (least..=u64::midpoint(least, most)).contains(words);
            let share = words.iter().filter(lower).count() as f64 / words.len() as f64;
            let half = lengths[0].0 as f64 / 200.0;
            assert!((share / half - 1.0).abs() < 0.2, "{kind:?}: not evenly distributed, {share}");
        }
    }

    #[test]
    fn each_kind_has_its_shape() {
        for line in texts(Kind::Logs) {
            let (time, rest) = line.split_once(' ').unwrap();
            assert!(time.len() == 20 && time.starts_with("2025-") && time.ends_with('Z'), "{line}");
            assert!(rest.split(' ').next().unwrap().ends_with("]:"), "{line}");
        }
        let logs = texts(Kind::Logs).concat();
        assert!(["/var/lib/", "=", ","].iter().all(|part| logs.contains(part)));
        for text in texts(Kind::Sentences).iter().chain(&texts(Kind::Passages)) {
            assert!(text.starts_with(|first: char| first.is_uppercase()) && text.ends_with('.'));
        }
        assert!(texts(Kind::Passages).iter().all(|text| text.matches('.').count() > 1));
    }
}
