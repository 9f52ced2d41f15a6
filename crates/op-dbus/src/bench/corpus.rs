//! The texts that are measured with: the user's own, or generated ones.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use op_dbus_engine::Limits;

use super::generated::Kind;
use super::random::Random;
use crate::cli::{CALL_BYTES_MAX, Failure, check_text, decoded, unmarked};

/// Generated texts.
const GENERATED_TEXTS: usize = 1024;
/// Texts that are read from a file, as the help of `--corpus` says.
const FILE_TEXTS_MAX: usize = 20_000;

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
    pub fn generated(kind: Kind, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let texts = (0..GENERATED_TEXTS).map(|_| kind.text(&mut random));
        let texts = spread_by_length(texts.collect());
        let source = format!("generated, seed {seed}: {}", kind.stated());
        Self { name: kind.name().to_owned(), source, texts }
    }

    /// One of each of `kinds`, or a mixed one.
    pub fn all_generated(kinds: &[Kind], seed: u64) -> Vec<Self> {
        let kinds = if kinds.is_empty() { &[Kind::Mixed] } else { kinds };
        let asked_for = Kind::value_variants().iter().filter(|kind| kinds.contains(kind));
        asked_for.map(|kind| Self::generated(*kind, seed)).collect()
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

    /// The first lines of a file that are texts, none longer than the service takes.
    fn read(named: &Named) -> Result<Self, Failure> {
        let path = named.path.display();
        let unread = |error: io::Error| Failure::refused(format!("can't read {path}: {error}"));
        let file = File::open(&named.path).map_err(unread)?;
        let mut texts = Vec::new();
        for (line, number) in BufReader::new(file).split(b'\n').zip(1_u64..) {
            let line = line.map_err(unread)?;
            let line = if number == 1 { unmarked(&line) } else { &line[..] };
            texts.extend(text(line, &format!("{path}, line {number}"))?);
            if texts.len() == FILE_TEXTS_MAX {
                break;
            }
        }
        if texts.is_empty() {
            return Err(Failure::refused(format!("{path} has no texts")));
        }
        let texts = spread_by_length(texts);
        Ok(Self { name: named.name.clone(), source: path.to_string(), texts })
    }

    /// Texts that each call can have, `most` at most: as many bytes as those of `op-dbus embed` carry, wherever
    /// a call begins.
    pub fn call_texts(&self, most: usize) -> usize {
        let bytes = |position: usize| self.texts[position % self.texts.len()].len();
        let (mut size, mut end, mut sum) = (most, 0, 0);
        for start in 0..self.texts.len() {
            while end - start < size && (end == start || sum + bytes(end) <= CALL_BYTES_MAX) {
                sum += bytes(end);
                end += 1;
            }
            size = end - start;
            sum -= bytes(start);
        }
        size
    }

    /// The texts of call number `call` when each has `size`; they start over at the end.
    pub fn call(&self, call: usize, size: usize) -> impl Iterator<Item = usize> {
        let texts = self.texts.len();
        (call * size..(call + 1) * size).map(move |position| position % texts)
    }
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

/// The text of a line; none where it is blank, or has a NUL, as a log does that a crash has cut off. What else can't be
/// sent is refused as `op-dbus embed` does.
fn text(line: &[u8], place: &str) -> Result<Option<String>, Failure> {
    let line = decoded(line.strip_suffix(b"\r").unwrap_or(line), place)?;
    if line.trim().is_empty() || line.contains('\0') {
        return Ok(None);
    }
    check_text(line, Limits::default().text_bytes_max, place)?;
    Ok(Some(line.to_owned()))
}

/// The texts in calls of `most` at most, and of as many bytes as those of `op-dbus embed` have.
pub fn calls(texts: &[String], most: usize) -> impl Iterator<Item = &[String]> {
    let mut left = texts;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |text: &&String| {
            bytes += text.len();
            bytes <= CALL_BYTES_MAX
        };
        let count = left.iter().take(most).take_while(fits).count().max(1);
        let (call, rest) = left.split_at(count.min(left.len()));
        left = rest;
        (!call.is_empty()).then_some(call)
    })
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_texts() {
        for kind in Kind::value_variants() {
            let of = |seed| Corpus::generated(*kind, seed);
            let (one, same, other) = (of(1), of(1), of(2));
            assert_eq!(one.texts, same.texts);
            assert_ne!(one.texts, other.texts);
            assert_eq!(one.texts.len(), GENERATED_TEXTS);
            assert!(one.source.contains(&kind.stated()), "{}", one.source);
        }
    }

    #[test]
    fn calls_are_bounded_by_texts_and_by_bytes() {
        let long = CALL_BYTES_MAX / 2;
        let texts = [long, 1, long, 1, 1, 1].map(|bytes| "x".repeat(bytes));
        let sizes: Vec<usize> = calls(&texts, 3).map(<[_]>::len).collect();
        assert_eq!(sizes, [2, 3, 1]);
        assert_eq!(calls(&[], 3).count(), 0);
        let corpus = |texts: &[String]| Corpus {
            name: String::new(),
            source: String::new(),
            texts: texts.to_vec(),
        };
        assert_eq!(corpus(&texts).call_texts(1000), 2);
        assert_eq!(corpus(&texts).call_texts(1), 1);
        assert_eq!(corpus(&texts[..1]).call_texts(1000), 2, "it comes again");
        assert_eq!(corpus(&texts[3..]).call_texts(1000), 1000);
        let one_too_long = ["x".repeat(CALL_BYTES_MAX + 1), String::new()];
        assert_eq!(calls(&one_too_long, 3).count(), 2);
        assert_eq!(corpus(&one_too_long).call_texts(3), 1);
    }

    #[test]
    fn every_beginning_has_the_lengths_of_the_whole() {
        let corpus = Corpus::generated(Kind::Mixed, 4);
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
    fn a_line_that_cant_be_sent_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let read = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            let named = path.display().to_string().parse().unwrap();
            Corpus::read_all(&[named]).map(|mut all| all.remove(0).texts)
        };
        let two = Some(vec!["one".to_owned(), "three".to_owned()]);
        assert_eq!(read(b"one\r\n \n\na\0b\nthree").ok(), two);
        assert_eq!(read("\u{feff}one\nthree\n".as_bytes()).ok(), two);
        let error = read(b"one\n\xffwo\n").unwrap_err().message().to_owned();
        let expected = format!("{}, line 2: not UTF-8 text; mend it", path.display());
        assert!(error.starts_with(&expected), "{error}");
        let full = "x".repeat(Limits::default().text_bytes_max);
        assert_eq!(read(full.as_bytes()).ok(), Some(vec![full.clone()]));
        let error = read(format!("one\n\n{full}x\n").as_bytes()).unwrap_err().message().to_owned();
        let expected = format!("{}, line 3: longer than {} bytes", path.display(), full.len());
        assert!(error.starts_with(&expected), "{error}");
    }

    #[test]
    fn no_more_of_a_file_is_read_than_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        // What follows is no text, and more than a pipe and its reader hold.
        let content = [b"a text\n".repeat(FILE_TEXTS_MAX), vec![b'\xff'; 4 << 20]].concat();
        std::thread::scope(|scope| {
            let written = scope.spawn(|| std::fs::write(&path, &content));
            let named = path.display().to_string().parse().unwrap();
            let texts = Corpus::read_all(&[named]).unwrap().remove(0).texts;
            assert_eq!(texts.len(), FILE_TEXTS_MAX);
            let error = written.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        });
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
