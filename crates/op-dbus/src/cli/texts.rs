//! Where texts come from: arguments, files or standard input, one a line, read as they are needed.

mod lines;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use futures_util::{Stream, stream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Failure;
use super::places::Places;
use super::unnamed::{Identity, identity};

pub use lines::{check, decoded, unmarked};

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
    ///
    /// # Errors
    /// A file that can't be read: before the texts of the others are computed for nothing.
    pub fn new(arguments: Vec<String>, files: Vec<PathBuf>) -> Result<Self, Failure> {
        if !arguments.is_empty() && arguments != [STDIN] {
            return Ok(Self::Arguments(arguments));
        }
        files.iter().try_for_each(|path| lines::look(path))?;
        Ok(Self::Files(if files.is_empty() { vec![STDIN.into()] } else { files }))
    }

    /// Refuses to read the file that vectors are written to as they come: they would be texts then, without end.
    ///
    /// # Errors
    /// Exit code 2.
    pub fn apart_from(&self, output: Option<Identity>) -> Result<(), Failure> {
        let Self::Files(paths) = self else { return Ok(()) };
        for path in paths {
            let is_stdin = path == Path::new(STDIN);
            let file = identity(if is_stdin { Path::new("/dev/stdin") } else { path });
            if file.is_some() && file == output {
                let name = lines::name(path);
                return Err(Failure::usage(format!(
                    "{name} is read and written at once: its vectors would be read as texts; write to \
                     another file, or name the file with --output, which replaces one that is there \
                     when all is written"
                )));
            }
        }
        Ok(())
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

/// A text that was read, and its bytes of the reader's room until it is in a call.
type Read = (String, OwnedSemaphorePermit);

/// Texts on their way into calls.
pub struct Texts {
    incoming: mpsc::Receiver<Result<Read, Failure>>,
    /// Read, but too big for the call it was read for.
    left_over: Option<String>,
    limits: CallLimits,
    places: Places,
}

impl Texts {
    /// Starts reading on a thread of its own, so that a slow input does not hold up calls that are under way.
    pub fn read(source: Source, limits: CallLimits) -> Self {
        let (outgoing, texts) = channel(limits);
        let runtime = Handle::current();
        let read = async move || {
            if let Err(failure) = feed(source, limits.text_bytes_max, &outgoing).await {
                // A receiver that is gone has lost its interest in the failure too.
                outgoing.sender.send(Err(failure)).await.ok();
            }
        };
        thread::spawn(move || runtime.block_on(read()));
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
                Ok((text, _)) => text,
                Err(failure) => return Some(Err(failure)),
            },
        };
        let mut bytes = first.len();
        let mut texts = vec![first];
        while texts.len() < self.limits.texts_max {
            let text = match self.incoming.try_recv() {
                Ok(Ok((text, _))) => text,
                Ok(Err(failure)) => return Some(Err(failure)),
                Err(_) => break,
            };
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

/// The reader's end.
struct Outgoing {
    sender: mpsc::Sender<Result<Read, Failure>>,
    /// A permit for each byte of text that may be read and in no call yet.
    room: Arc<Semaphore>,
    places: Places,
}

impl Outgoing {
    /// Hands a text over once there is room for it; `false` when nobody listens any more.
    async fn send(&self, text: String) -> bool {
        // One text always has room.
        let bytes = text.len().min(READ_AHEAD_BYTES) as u32;
        let Ok(room) = self.room.clone().acquire_many_owned(bytes).await else { return false };
        self.sender.send(Ok((text, room))).await.is_ok()
    }
}

fn channel(limits: CallLimits) -> (Outgoing, Texts) {
    let (sender, incoming) = mpsc::channel(READ_AHEAD_TEXTS);
    let (room, places) = (Arc::new(Semaphore::new(READ_AHEAD_BYTES)), Places::default());
    let texts = Texts { incoming, left_over: None, limits, places: places.clone() };
    (Outgoing { sender, room, places }, texts)
}

/// Sends every text of `source`; ends early, without a failure, when nobody listens any more. It waits where a file has
/// it wait, and is for a thread of its own.
async fn feed(source: Source, text_bytes_max: usize, outgoing: &Outgoing) -> Result<(), Failure> {
    match source {
        Source::Arguments(texts) => {
            for (position, text) in texts.into_iter().enumerate() {
                check(&text, text_bytes_max, &format!("argument {}", position + 1))?;
                if !outgoing.send(text).await {
                    break;
                }
            }
        }
        Source::Files(paths) => {
            let mut first = 0;
            for path in paths {
                let (name, mut reader) = (lines::name(&path), lines::open(&path)?);
                outgoing.places.begin(first, &name);
                first += lines::feed(&mut *reader, &name, text_bytes_max, outgoing).await?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CallLimits = CallLimits { texts_max: 3, bytes_max: 8, text_bytes_max: 6 };

    async fn calls(texts: &[&str]) -> Vec<usize> {
        let (outgoing, mut incoming) = channel(LIMITS);
        for text in texts {
            assert!(outgoing.send((*text).to_owned()).await);
        }
        let room = outgoing.room.clone();
        drop(outgoing);
        let mut sizes = Vec::new();
        while let Some(call) = incoming.next_call().await {
            sizes.push(call.expect("no failure was sent").len());
        }
        assert_eq!(room.available_permits(), READ_AHEAD_BYTES, "every text gave its room back");
        sizes
    }

    #[tokio::test]
    async fn texts_are_known_by_their_files_and_lines() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["one", "none", "two"].map(|name| folder.path().join(name));
        for (path, lines) in paths.iter().zip(["a\n\nb", "", "c\n"]) {
            std::fs::write(path, lines).unwrap();
        }
        let (outgoing, texts) = channel(LIMITS);
        feed(Source::Files(paths.to_vec()), LIMITS.text_bytes_max, &outgoing).await.unwrap();
        let lines = [0, 2, 3].map(|index| texts.places().line(index).unwrap());
        let expected = [(0, 1), (0, 3), (2, 1)]
            .map(|(file, line): (usize, u64)| format!("{}:{line}", paths[file].display()));
        assert_eq!(lines, expected);
        let (outgoing, texts) = channel(LIMITS);
        let argument = Source::Arguments(vec!["a".to_owned()]);
        feed(argument, LIMITS.text_bytes_max, &outgoing).await.unwrap();
        assert_eq!(texts.places().line(0), None);
    }

    #[test]
    fn a_file_that_cant_be_read_is_told_before_the_others_are() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a\n").unwrap();
        for wrong in ["/nonexistent/file", "/proc"] {
            let paths = vec![file.path().to_owned(), wrong.into()];
            let refused = Source::new(Vec::new(), paths).err().unwrap();
            let told = format!("can't read {wrong}: ");
            assert!(refused.message().starts_with(&told), "{}", refused.message());
        }
    }

    #[test]
    fn what_is_written_to_meanwhile_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["texts", "vectors", "link"].map(|name| folder.path().join(name));
        std::fs::write(&paths[0], "").unwrap();
        std::fs::write(&paths[1], "").unwrap();
        std::fs::hard_link(&paths[1], &paths[2]).unwrap();
        let output = identity(&paths[1]);
        let source = |paths: &[PathBuf]| Source::Files(paths.to_vec());
        assert_eq!(source(&paths[..1]).apart_from(output), Ok(()));
        assert_eq!(source(&paths).apart_from(None), Ok(()));
        for path in [1, 2] {
            let refused = source(&[paths[0].clone(), paths[path].clone()]).apart_from(output);
            let told = format!("{} is read and written at once: ", paths[path].display());
            let refused = refused.unwrap_err();
            assert!(refused.message().starts_with(&told), "{}", refused.message());
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
