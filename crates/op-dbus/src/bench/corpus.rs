//! The texts that are measured with: the user's own, or generated ones of mixed lengths.

use std::path::PathBuf;
use std::str::FromStr;

use super::random::Random;
use crate::cli::Failure;

/// Generated texts.
const GENERATED_TEXTS: usize = 1024;
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

/// Texts to measure with, in an order in which every beginning has the lengths of the whole.
pub struct Corpus {
    pub name: String,
    /// What to print about where they come from.
    pub source: String,
    pub texts: Vec<String>,
}

/// A file of texts and the name that its figures get: `NAME=FILE`, or `FILE` for its own name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    pub path: PathBuf,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) = match text.split_once('=') {
            Some((name, path)) if !name.contains('/') => (name.to_owned(), PathBuf::from(path)),
            _ => {
                let path = PathBuf::from(text);
                (path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), path)
            }
        };
        if name.is_empty() || path.as_os_str().is_empty() {
            return Err("write NAME=FILE or FILE".to_owned());
        }
        Ok(Self { name, path })
    }
}

impl Corpus {
    /// Texts made from a seed; the same seed gives the same texts everywhere.
    pub fn generated(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let texts = (0..GENERATED_TEXTS).map(|_| {
            let words = length(&mut random);
            sentence(&mut random, words)
        });
        let texts = spread_by_length(texts.collect());
        Self { name: "generated".to_owned(), source: format!("generated, seed {seed}"), texts }
    }

    /// What the files have, each under its own name.
    ///
    /// # Errors
    /// Two of one name, whose figures nobody could tell apart; a file that can't be read, or has no texts.
    pub fn read_all(files: &[Named]) -> Result<Vec<Self>, Failure> {
        for (number, Named { name, path }) in files.iter().enumerate() {
            if let Some(other) = files[..number].iter().find(|other| other.name == *name) {
                return Err(Failure::usage(format!(
                    "--corpus names {} and {} both `{name}`: give one of them another name, NAME=FILE",
                    other.path.display(),
                    path.display()
                )));
            }
        }
        files.iter().map(Self::read).collect()
    }

    /// The lines of a file that are not blank.
    fn read(named: &Named) -> Result<Self, Failure> {
        let path = named.path.display();
        let content = std::fs::read(&named.path)
            .map_err(|error| Failure::refused(format!("can't read {path}: {error}")))?;
        let lines = content.split(|byte| *byte == b'\n').zip(1_u64..).map(|(line, number)| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            // As `op-dbus embed` says it.
            std::str::from_utf8(line).map_err(|_| {
                Failure::refused(format!(
                    "{path}, line {number}: not UTF-8 text; leave such bytes out with `iconv -c -f \
                     UTF-8 -t UTF-8`"
                ))
            })
        });
        let usable = |line: &str| !line.trim().is_empty() && !line.contains('\0');
        let lines = lines.filter(|line| line.as_ref().map_or(true, |line| usable(line)));
        let texts = lines.take(FILE_TEXTS_MAX).map(|line| line.map(str::to_owned));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        if texts.is_empty() {
            return Err(Failure::refused(format!("{path} has no texts")));
        }
        let texts = spread_by_length(texts);
        Ok(Self { name: named.name.clone(), source: path.to_string(), texts })
    }

    /// The texts of call number `call` when each has `size`; they start over at the end.
    pub fn call(&self, call: usize, size: usize) -> impl Iterator<Item = usize> {
        let texts = self.texts.len();
        (call * size..(call + 1) * size).map(move |position| position % texts)
    }
}

/// Generated candidates for texts of one length, from short to long.
pub fn candidates(words: std::ops::RangeInclusive<u64>, each: usize) -> Vec<String> {
    let mut random = Random::new(0);
    words.flat_map(|words| vec![words; each]).map(|words| sentence(&mut random, words)).collect()
}

/// Sorts the texts by length and visits them as van der Corput visits an interval. Whoever measures
/// with the first few of them, because it is slow, measures with the same lengths as all others.
fn spread_by_length(mut texts: Vec<String>) -> Vec<String> {
    texts.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    let mut texts: Vec<Option<String>> = texts.into_iter().map(Some).collect();
    let bits = texts.len().next_power_of_two().trailing_zeros();
    let reversed = (0..1_usize << bits).map(|n| n.reverse_bits() >> (usize::BITS - bits).min(63));
    reversed.filter_map(|place| texts.get_mut(place)?.take()).collect()
}

/// A number below `end`; the bias is far below what a length distribution shows.
fn below(random: &mut Random, end: u64) -> u64 {
    random.next() % end
}

fn length(random: &mut Random) -> u64 {
    let mut percent = below(random, 100);
    for (share, least, most) in LENGTHS {
        if percent < share {
            return least + below(random, most - least + 1);
        }
        percent -= share;
    }
    LENGTHS[0].1
}

fn sentence(random: &mut Random, words: u64) -> String {
    let all: Vec<&str> = WORDS.split_whitespace().collect();
    let chosen: Vec<&str> =
        (0..words).map(|_| all[below(random, all.len() as u64) as usize]).collect();
    chosen.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    #[test]
    fn a_seed_always_gives_the_same_texts() {
        let (one, same, other) = (Corpus::generated(1), Corpus::generated(1), Corpus::generated(2));
        assert_eq!(one.texts, same.texts);
        assert_ne!(one.texts, other.texts);
    }

    #[test]
    fn generated_lengths_are_mixed_as_stated() {
        let corpus = Corpus::generated(3);
        let words: Vec<usize> = corpus.texts.iter().map(|text| words(text)).collect();
        assert_eq!(words.len(), GENERATED_TEXTS);
        let short = words.iter().filter(|words| **words <= 14).count() as f64 / words.len() as f64;
        assert!((0.4..0.6).contains(&short), "{short}");
        assert!(words.iter().all(|words| (4..=160).contains(words)));
        assert!(words.iter().any(|words| *words > 60));
    }

    #[test]
    fn every_beginning_has_the_lengths_of_the_whole() {
        let corpus = Corpus::generated(4);
        let mean = |texts: &[String]| {
            texts.iter().map(String::len).sum::<usize>() as f64 / texts.len() as f64
        };
        let whole = mean(&corpus.texts);
        for part in [50, 100, 300, 700] {
            let ratio = mean(&corpus.texts[..part]) / whole;
            assert!((0.9..1.1).contains(&ratio), "{part} texts: {ratio}");
        }
    }

    #[test]
    fn no_text_is_lost_in_the_order() {
        for texts in [1, 2, 3, 7, 64, 65] {
            let before: Vec<String> = (0..texts).map(|n| "x".repeat(n)).collect();
            let mut after = spread_by_length(before.clone());
            after.sort();
            assert_eq!(after, before);
        }
    }

    #[test]
    fn calls_go_through_the_texts_and_start_over() {
        let texts = vec![String::new(); 5];
        let corpus = Corpus { name: String::new(), source: String::new(), texts };
        assert_eq!(corpus.call(1, 3).collect::<Vec<_>>(), [3, 4, 0]);
    }

    #[test]
    fn no_two_corpora_have_one_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name).display().to_string();
            std::fs::write(&path, "a text\n").unwrap();
            path
        };
        let (one, other) = (file("log.1"), file("log.2"));
        let read = |files: [&str; 2]| {
            let files = files.map(|file| file.parse().unwrap());
            Corpus::read_all(&files).map(|all| all.into_iter().map(|corpus| corpus.name).collect())
        };
        assert_eq!(read([&one, &format!("x={other}")]).ok(), Some(vec!["log".into(), "x".into()]));
        let error =
            read([&one, &other]).err().map(|error| error.message().to_owned()).unwrap_or_default();
        assert!(error.contains("both `log`") && error.contains("NAME=FILE"), "{error}");
    }

    #[test]
    fn a_line_that_is_not_utf8_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let read = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            let named = path.display().to_string().parse().unwrap();
            Corpus::read_all(&[named]).map(|mut all| all.remove(0).texts)
        };
        assert_eq!(read(b"one\r\n \n\na\0b\nthree").ok(), Some(vec!["one".into(), "three".into()]));
        let error = read(b"one\n\xffwo\n").unwrap_err().message().to_owned();
        let expected = format!("{}, line 2: not UTF-8 text; leave such bytes", path.display());
        assert!(error.starts_with(&expected), "{error}");
    }

    #[test]
    fn corpora_are_named() {
        let named = |text: &str| text.parse::<Named>().map(|n| (n.name, n.path));
        assert_eq!(named("logs=/a/b.txt"), Ok(("logs".into(), "/a/b.txt".into())));
        assert_eq!(named("/a/b.txt"), Ok(("b".into(), "/a/b.txt".into())));
        assert_eq!(named("/a/x=y.txt"), Ok(("x=y".into(), "/a/x=y.txt".into())));
        assert!(named("logs=").is_err() && named("").is_err());
    }
}
