//! Where texts come from: arguments, files or standard input, one a line, read as they are needed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use super::Failure;

/// Texts that a reader may be ahead of the calls; with the limit on a text's length this bounds
/// the memory of a client, whatever the size of its input.
const READ_AHEAD_TEXTS: usize = 512;

/// The texts of a command.
#[derive(Debug)]
pub enum Source {
    /// Given as arguments.
    Arguments(Vec<String>),
    /// Lines of these files, one after the other; `-` is standard input.
    Files(Vec<PathBuf>),
}

impl Source {
    /// Arguments if there are any, else files, else standard input.
    pub fn new(arguments: Vec<String>, files: Vec<PathBuf>) -> Self {
        if !arguments.is_empty() {
            return Self::Arguments(arguments);
        }
        if !files.is_empty() {
            return Self::Files(files);
        }
        if io::stdin().is_terminal() {
            eprintln!("op-dbus: reading texts from the terminal, one a line; Ctrl-D ends them");
        }
        Self::Files(vec![PathBuf::from("-")])
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
    /// Read, but too big for the call it was read for.
    left_over: Option<String>,
    limits: CallLimits,
}

impl Texts {
    /// Starts reading on a thread of its own, so that a slow input does not hold up calls that
    /// are under way.
    pub fn read(source: Source, limits: CallLimits) -> Self {
        let (outgoing, incoming) = mpsc::channel(READ_AHEAD_TEXTS);
        std::thread::spawn(move || {
            if let Err(failure) = feed(source, limits.text_bytes_max, &outgoing) {
                // A receiver that is gone has lost its interest in the failure too.
                outgoing.blocking_send(Err(failure)).ok();
            }
        });
        Self { incoming, left_over: None, limits }
    }

    /// The texts of the next call: at least one, and then what is there already, up to the limits.
    /// A full input gives full calls, a trickle is passed on at once. `None` at the end.
    pub async fn next_call(&mut self) -> Option<Result<Vec<String>, Failure>> {
        let first = match self.left_over.take() {
            Some(text) => text,
            None => match self.incoming.recv().await? {
                Ok(text) => text,
                Err(failure) => return Some(Err(failure)),
            },
        };
        let mut bytes = first.len();
        let mut texts = vec![first];
        while texts.len() < self.limits.texts_max {
            match self.incoming.try_recv() {
                Ok(Ok(text)) if bytes + text.len() > self.limits.bytes_max => {
                    self.left_over = Some(text);
                    break;
                }
                Ok(Ok(text)) => {
                    bytes += text.len();
                    texts.push(text);
                }
                Ok(Err(failure)) => return Some(Err(failure)),
                Err(_) => break,
            }
        }
        Some(Ok(texts))
    }
}

type Outgoing = mpsc::Sender<Result<String, Failure>>;

/// Sends every text of `source`; ends early, without a failure, when nobody listens any more.
fn feed(source: Source, text_bytes_max: usize, outgoing: &Outgoing) -> Result<(), Failure> {
    match source {
        Source::Arguments(texts) => {
            for (position, text) in texts.into_iter().enumerate() {
                check(&text, text_bytes_max, &format!("argument {}", position + 1))?;
                if outgoing.blocking_send(Ok(text)).is_err() {
                    break;
                }
            }
        }
        Source::Files(paths) => {
            for path in paths {
                let (name, mut reader) = open(&path)?;
                feed_lines(&mut reader, &name, text_bytes_max, outgoing)?;
            }
        }
    }
    Ok(())
}

fn open(path: &Path) -> Result<(String, Box<dyn BufRead>), Failure> {
    if path == Path::new("-") {
        return Ok(("standard input".to_owned(), Box::new(BufReader::new(io::stdin()))));
    }
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => Ok((name, Box::new(BufReader::new(file)))),
        Err(error) => Err(Failure::refused(format!("can't read {name}: {error}"))),
    }
}

fn feed_lines(
    reader: &mut dyn BufRead,
    name: &str,
    text_bytes_max: usize,
    outgoing: &Outgoing,
) -> Result<(), Failure> {
    // One byte over the limit is enough to know; `\r\n` may follow a text of full length.
    let line_bytes_max = u64::try_from(text_bytes_max).unwrap_or(u64::MAX).saturating_add(3);
    for number in 1_u64.. {
        let place = format!("{name}, line {number}");
        let mut line = Vec::new();
        (&mut *reader)
            .take(line_bytes_max)
            .read_until(b'\n', &mut line)
            .map_err(|error| Failure::refused(format!("can't read {name}: {error}")))?;
        if line.is_empty() {
            break;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        check_length(text.len(), text_bytes_max, &place)?;
        let text = String::from_utf8(text.to_vec())
            .map_err(|_| Failure::refused(format!("{place}: not UTF-8 text")))?;
        check(&text, text_bytes_max, &place)?;
        if outgoing.blocking_send(Ok(text)).is_err() {
            break;
        }
    }
    Ok(())
}

/// What the bus or the service would refuse, refused with the place it stands at.
fn check(text: &str, text_bytes_max: usize, place: &str) -> Result<(), Failure> {
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
        let (outgoing, mut incoming) = mpsc::channel(64);
        feed_lines(&mut &*input, "in", LIMITS.text_bytes_max, &outgoing)?;
        drop(outgoing);
        let mut texts = Vec::new();
        while let Ok(text) = incoming.try_recv() {
            texts.push(text?);
        }
        Ok(texts)
    }

    async fn calls(texts: &[&str]) -> Vec<usize> {
        let (outgoing, incoming) = mpsc::channel(64);
        for text in texts {
            outgoing.send(Ok((*text).to_owned())).await.expect("the receiver lives");
        }
        drop(outgoing);
        let mut texts = Texts { incoming, left_over: None, limits: LIMITS };
        let mut sizes = Vec::new();
        while let Some(call) = texts.next_call().await {
            sizes.push(call.expect("no failure was sent").len());
        }
        sizes
    }

    #[test]
    fn one_text_a_line_and_empty_lines_are_texts() {
        assert_eq!(lines(b"a\n\nb\r\nc").unwrap(), ["a", "", "b", "c"]);
        assert_eq!(lines(b"").unwrap(), [""; 0]);
        assert_eq!(lines(b"\n").unwrap(), [""]);
    }

    #[test]
    fn a_text_of_full_length_passes_and_one_byte_more_is_refused_with_its_place() {
        assert_eq!(lines(b"123456\r\nx\n").unwrap(), ["123456", "x"]);
        let sentence =
            "in, line 2: longer than 6 bytes, the service's limit for one text; split it";
        assert_eq!(lines(b"x\n1234567\n").unwrap_err(), Failure::refused(sentence));
        assert_eq!(lines(b"x\n1234567890123\n").unwrap_err(), Failure::refused(sentence));
    }

    #[test]
    fn what_dbus_text_cannot_hold_is_refused() {
        assert_eq!(lines(b"\xff\n").unwrap_err(), Failure::refused("in, line 1: not UTF-8 text"));
        let sentence = "in, line 1: a NUL byte, which D-Bus text can't hold";
        assert_eq!(lines(b"a\0b\n").unwrap_err(), Failure::refused(sentence));
    }

    #[tokio::test]
    async fn calls_are_bounded_by_texts_and_by_bytes() {
        assert_eq!(calls(&["a", "b", "c", "d"]).await, [3, 1]);
        assert_eq!(calls(&["12345", "12345", "1"]).await, [1, 2]);
        assert_eq!(calls(&["12345", "123", "1"]).await, [2, 1]);
        assert_eq!(calls(&[]).await, [0; 0]);
    }

    #[tokio::test]
    async fn arguments_come_in_order() {
        let source = Source::Arguments(vec!["x".into(), "y".into()]);
        let mut texts = Texts::read(source, LIMITS);
        let mut all = Vec::new();
        while let Some(call) = texts.next_call().await {
            all.extend(call.unwrap());
        }
        assert_eq!(all, ["x", "y"]);
    }
}
