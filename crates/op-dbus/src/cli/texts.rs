//! Where texts come from: arguments, files or standard input, one a line, read as they are needed.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use futures_util::{Stream, stream};
use nix::unistd::{AccessFlags, access};
use tokio::sync::mpsc;

use super::places::{Places, place};
use super::{Failure, tell};

/// How far the reader may be ahead of the calls, which bounds a client's memory, whatever the size of its input.
const READ_AHEAD_TEXTS: usize = 4096;
const READ_AHEAD_BYTES: usize = 8 << 20;
/// The name of standard input.
const STDIN: &str = "-";

/// The texts of a command.
#[derive(Debug)]
pub enum Source {
    /// Given as arguments.
    Arguments(Vec<String>),
    /// Lines of these files, one after the other; `-` is standard input.
    Files(Vec<PathBuf>),
}

impl Source {
    /// Arguments if there are any but a lone `-`, else files, else standard input.
    pub fn new(arguments: Vec<String>, files: Vec<PathBuf>) -> Self {
        if !arguments.is_empty() && arguments != [STDIN] {
            return Self::Arguments(arguments);
        }
        if !files.is_empty() {
            return Self::Files(files);
        }
        if io::stdin().is_terminal() {
            tell("reading texts from the terminal, one a line; Ctrl-D ends them");
        }
        Self::Files(vec![PathBuf::from(STDIN)])
    }
}

/// How many texts, and how many bytes of text, go into one call.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    pub texts_max: usize,
    pub bytes_max: usize,
    /// Longest text that the service takes.
    pub text_bytes_max: usize,
}

/// Texts on their way into calls.
pub struct Texts {
    incoming: mpsc::Receiver<Result<String, Failure>>,
    ahead: Arc<Ahead>,
    /// Read, but too big for the call it was read for.
    left_over: Option<String>,
    limits: CallLimits,
    places: Places,
}

impl Texts {
    /// Starts reading on a thread of its own, so that a slow input does not hold up calls that are under way.
    pub fn read(source: Source, limits: CallLimits) -> Self {
        let (outgoing, texts) = channel(limits);
        std::thread::spawn(move || {
            if let Err(failure) = feed(source, limits.text_bytes_max, &outgoing) {
                // A receiver that is gone has lost its interest in the failure too.
                outgoing.sender.blocking_send(Err(failure)).ok();
            }
        });
        texts
    }

    /// Where they stand, which is known of each that has been read.
    pub fn places(&self) -> Places {
        self.places.clone()
    }

    /// The texts of each call, with the number of the first over all calls.
    pub fn calls(self) -> impl Stream<Item = (u64, Result<Vec<String>, Failure>)> {
        stream::unfold((self, 0), async |(mut texts, first)| {
            let call = texts.next_call().await?;
            let next = first + call.as_ref().map_or(0, |call| call.len() as u64);
            Some(((first, call), (texts, next)))
        })
    }

    /// The texts of the next call: at least one, and then what is there already, up to the limits.
    /// A full input gives full calls, a trickle is passed on at once. `None` at the end.
    async fn next_call(&mut self) -> Option<Result<Vec<String>, Failure>> {
        let first = match self.left_over.take() {
            Some(text) => text,
            None => match self.incoming.recv().await? {
                Ok(text) => {
                    self.ahead.less(text.len());
                    text
                }
                Err(failure) => return Some(Err(failure)),
            },
        };
        let mut bytes = first.len();
        let mut texts = vec![first];
        while texts.len() < self.limits.texts_max {
            let text = match self.incoming.try_recv() {
                Ok(Ok(text)) => text,
                Ok(Err(failure)) => return Some(Err(failure)),
                Err(_) => break,
            };
            self.ahead.less(text.len());
            if bytes + text.len() > self.limits.bytes_max {
                self.left_over = Some(text);
                break;
            }
            bytes += text.len();
            texts.push(text);
        }
        Some(Ok(texts))
    }
}

/// Bytes of text that are read but in no call yet.
#[derive(Default)]
struct Ahead {
    bytes: Mutex<usize>,
    fewer: Condvar,
}

impl Ahead {
    /// Waits until there is room, then counts `bytes` in. One text always has room.
    fn more(&self, bytes: usize) {
        let mut ahead = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        while *ahead > 0 && *ahead + bytes > READ_AHEAD_BYTES {
            ahead = self.fewer.wait(ahead).unwrap_or_else(PoisonError::into_inner);
        }
        *ahead += bytes;
    }

    fn less(&self, bytes: usize) {
        let mut ahead = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *ahead = ahead.saturating_sub(bytes);
        self.fewer.notify_one();
    }
}

/// The reader's end.
struct Outgoing {
    sender: mpsc::Sender<Result<String, Failure>>,
    ahead: Arc<Ahead>,
    places: Places,
}

impl Outgoing {
    /// Hands a text over; `false` when nobody listens any more.
    fn send(&self, text: String) -> bool {
        self.ahead.more(text.len());
        self.sender.blocking_send(Ok(text)).is_ok()
    }
}

fn channel(limits: CallLimits) -> (Outgoing, Texts) {
    let (sender, incoming) = mpsc::channel(READ_AHEAD_TEXTS);
    let (ahead, places) = (Arc::<Ahead>::default(), Places::default());
    let (heard, known) = (ahead.clone(), places.clone());
    let texts = Texts { incoming, ahead: heard, left_over: None, limits, places: known };
    (Outgoing { sender, ahead, places }, texts)
}

/// Sends every text of `source`; ends early, without a failure, when nobody listens any more.
fn feed(source: Source, text_bytes_max: usize, outgoing: &Outgoing) -> Result<(), Failure> {
    match source {
        Source::Arguments(texts) => {
            for (position, text) in texts.into_iter().enumerate() {
                check(&text, text_bytes_max, &format!("argument {}", position + 1))?;
                if !outgoing.send(text) {
                    break;
                }
            }
        }
        Source::Files(paths) => {
            // Before the texts of the others are computed for nothing.
            paths.iter().try_for_each(|path| look(path))?;
            let mut first = 0;
            for path in paths {
                let (name, mut reader) = open(&path)?;
                outgoing.places.begin(first, &name);
                first += feed_lines(&mut reader, &name, text_bytes_max, outgoing)?;
            }
        }
    }
    Ok(())
}

/// Refuses what is no file to read. A pipe is not opened for that: who writes to it would see it closed.
fn look(path: &Path) -> Result<(), Failure> {
    if path == Path::new(STDIN) {
        return Ok(());
    }
    match access(path, AccessFlags::R_OK) {
        Ok(()) if path.is_dir() => Err(unread(path.display(), &ErrorKind::IsADirectory.into())),
        looked => looked.map_err(|errno| unread(path.display(), &errno.into())),
    }
}

fn open(path: &Path) -> Result<(String, Box<dyn BufRead>), Failure> {
    if path == Path::new(STDIN) {
        return Ok(("standard input".to_owned(), Box::new(BufReader::new(io::stdin()))));
    }
    let file = File::open(path).map_err(|error| unread(path.display(), &error))?;
    Ok((path.display().to_string(), Box::new(BufReader::new(file))))
}

fn unread(name: impl fmt::Display, error: &io::Error) -> Failure {
    Failure::refused(format!("can't read {name}: {error}"))
}

/// Sends the texts of a file; returns how many there are.
fn feed_lines(
    reader: &mut dyn BufRead,
    name: &str,
    text_bytes_max: usize,
    outgoing: &Outgoing,
) -> Result<u64, Failure> {
    // One byte over the limit is enough to know; `\r\n` may follow a text of full length, and a mark precede it.
    let line_bytes_max = u64::try_from(text_bytes_max).unwrap_or(u64::MAX).saturating_add(6);
    let mut lines = 0;
    loop {
        let mut line = Vec::new();
        (&mut *reader)
            .take(line_bytes_max)
            .read_until(b'\n', &mut line)
            .map_err(|error| unread(name, &error))?;
        let line = if lines == 0 { unmarked(&line) } else { &line[..] };
        if line.is_empty() {
            return Ok(lines);
        }
        lines += 1;
        let place = place(name, lines);
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        check_length(text.len(), text_bytes_max, &place)?;
        let text = decoded(text, &place)?;
        check(text, text_bytes_max, &place)?;
        if !outgoing.send(text.to_owned()) {
            return Ok(lines);
        }
    }
}

/// A file without the mark that it may begin with, which is no text of it: how it is written.
pub fn unmarked(file: &[u8]) -> &[u8] {
    file.strip_prefix("\u{feff}".as_bytes()).unwrap_or(file)
}

/// The text of a line's bytes, or of a whole file's.
pub fn decoded<'a>(bytes: &'a [u8], place: &str) -> Result<&'a str, Failure> {
    std::str::from_utf8(bytes).map_err(|_| {
        // UTF-16 begins with its mark, in either order.
        let is_utf16 = bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff");
        let from = if is_utf16 { "UTF-16" } else { "ENCODING" };
        Failure::refused(format!(
            "{place}: not UTF-8 text; mend it, or convert it with `iconv -f {from} -t UTF-8`"
        ))
    })
}

/// What the bus or the service would refuse, refused with the place it stands at.
pub fn check(text: &str, text_bytes_max: usize, place: &str) -> Result<(), Failure> {
    check_length(text.len(), text_bytes_max, place)?;
    if text.contains('\0') {
        return Err(Failure::refused(format!("{place}: a NUL byte, which D-Bus text can't hold")));
    }
    Ok(())
}

fn check_length(bytes: usize, bytes_max: usize, place: &str) -> Result<(), Failure> {
    if bytes > bytes_max {
        return Err(Failure::refused(format!(
            "{place}: longer than {bytes_max} bytes, the service's limit for one text; split it"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CallLimits = CallLimits { texts_max: 3, bytes_max: 8, text_bytes_max: 6 };

    fn lines(input: &[u8]) -> Result<Vec<String>, Failure> {
        let (outgoing, mut texts) = channel(LIMITS);
        feed_lines(&mut &*input, "in", LIMITS.text_bytes_max, &outgoing)?;
        drop(outgoing);
        std::iter::from_fn(|| texts.incoming.try_recv().ok()).collect()
    }

    async fn calls(texts: &[&str]) -> Vec<usize> {
        let (outgoing, mut incoming) = channel(LIMITS);
        for text in texts {
            outgoing.ahead.more(text.len());
            outgoing.sender.send(Ok((*text).to_owned())).await.expect("the receiver lives");
        }
        drop(outgoing);
        let ahead = incoming.ahead.clone();
        let mut sizes = Vec::new();
        while let Some(call) = incoming.next_call().await {
            sizes.push(call.expect("no failure was sent").len());
        }
        assert_eq!(*ahead.bytes.lock().unwrap(), 0, "every text was counted out again");
        sizes
    }

    #[test]
    fn one_text_a_line_and_empty_lines_are_texts() {
        assert_eq!(lines(b"a\n\nb\r\nc").unwrap(), ["a", "", "b", "c"]);
        assert_eq!(lines(b"").unwrap(), [""; 0]);
        assert_eq!(lines(b"\n").unwrap(), [""]);
    }

    #[test]
    fn a_byte_order_mark_that_a_file_begins_with_is_no_text() {
        assert_eq!(lines("\u{feff}a\n\u{feff}b\n".as_bytes()).unwrap(), ["a", "\u{feff}b"]);
        assert_eq!(lines("\u{feff}".as_bytes()).unwrap(), [""; 0]);
        assert_eq!(lines("\u{feff}123456\r\nx\n".as_bytes()).unwrap(), ["123456", "x"]);
    }

    #[test]
    fn a_text_of_full_length_passes_and_one_byte_more_is_refused_with_its_place() {
        assert_eq!(lines(b"123456\r\nx\n").unwrap(), ["123456", "x"]);
        let sentence = "in:2: longer than 6 bytes, the service's limit for one text; split it";
        assert_eq!(lines(b"x\n1234567\n").unwrap_err(), Failure::refused(sentence));
        assert_eq!(lines(b"x\n1234567890123\n").unwrap_err(), Failure::refused(sentence));
    }

    #[test]
    fn what_dbus_text_cannot_hold_is_refused() {
        let own = "in:1: not UTF-8 text; mend it, or convert it with `iconv -f ENCODING -t UTF-8`";
        assert_eq!(lines(b"\xff\n").unwrap_err(), Failure::refused(own));
        assert!(lines(b"\xff\xfea\0\n\0").unwrap_err().message().contains("`iconv -f UTF-16 "));
        let sentence = "in:1: a NUL byte, which D-Bus text can't hold";
        assert_eq!(lines(b"a\0b\n").unwrap_err(), Failure::refused(sentence));
    }

    #[test]
    fn texts_are_known_by_their_files_and_lines() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["one", "none", "two"].map(|name| folder.path().join(name));
        for (path, lines) in paths.iter().zip(["a\n\nb", "", "c\n"]) {
            std::fs::write(path, lines).unwrap();
        }
        let (outgoing, texts) = channel(LIMITS);
        feed(Source::Files(paths.to_vec()), LIMITS.text_bytes_max, &outgoing).unwrap();
        let lines = [0, 2, 3].map(|index| texts.places().line(index).unwrap());
        let expected = [(0, 1), (0, 3), (2, 1)]
            .map(|(file, line): (usize, u64)| format!("{}:{line}", paths[file].display()));
        assert_eq!(lines, expected);
        let (outgoing, texts) = channel(LIMITS);
        feed(Source::Arguments(vec!["a".to_owned()]), LIMITS.text_bytes_max, &outgoing).unwrap();
        assert_eq!(texts.places().line(0), None);
    }

    #[test]
    fn a_file_that_cant_be_read_is_told_before_the_others_are() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a\n").unwrap();
        for wrong in ["/nonexistent/file", "/proc"] {
            let (outgoing, mut texts) = channel(LIMITS);
            let paths = vec![file.path().to_owned(), wrong.into()];
            let refused = feed(Source::Files(paths), LIMITS.text_bytes_max, &outgoing).unwrap_err();
            let told = format!("can't read {wrong}: ");
            assert!(refused.message().starts_with(&told), "{}", refused.message());
            assert!(texts.incoming.try_recv().is_err());
        }
    }

    #[tokio::test]
    async fn calls_are_bounded_by_texts_and_by_bytes() {
        assert_eq!(calls(&["a", "b", "c", "d"]).await, [3, 1]);
        assert_eq!(calls(&["12345", "12345", "1"]).await, [1, 2]);
        assert_eq!(calls(&["12345", "123", "1"]).await, [2, 1]);
        assert_eq!(calls(&[]).await, [0; 0]);
    }

    #[tokio::test]
    async fn a_reader_far_ahead_waits_and_loses_nothing() {
        let text = "x".repeat(READ_AHEAD_BYTES / 3);
        let limits = CallLimits { texts_max: 2, bytes_max: text.len(), text_bytes_max: text.len() };
        let mut texts = Texts::read(Source::Arguments(vec![text; 10]), limits);
        let mut read = 0;
        while let Some(call) = texts.next_call().await {
            read += call.unwrap().len();
        }
        assert_eq!(read, 10);
    }
}
