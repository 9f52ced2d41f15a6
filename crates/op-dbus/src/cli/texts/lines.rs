//! Lines of a file as texts: what can be read, and what is refused with the place where it stands.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read};
use std::path::Path;

use nix::unistd::{AccessFlags, access};

use super::super::places::place;
use super::super::{Failure, standard, tell};
use super::{Outgoing, STDIN};

/// Refuses what is no file to read. A pipe is not opened for that: who writes to it would see it closed.
pub fn look(path: &Path) -> Result<(), Failure> {
    if path == Path::new(STDIN) {
        return Ok(());
    }
    match access(path, AccessFlags::R_OK) {
        Ok(()) if path.is_dir() => Err(unread(path.display(), &ErrorKind::IsADirectory.into())),
        looked => looked.map_err(|errno| unread(path.display(), &errno.into())),
    }
}

/// What a file to read is called.
pub fn name(path: &Path) -> String {
    match path == Path::new(STDIN) {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}

/// Opens a file, or standard input, where a person is told that texts are waited for.
pub fn open(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    if path != Path::new(STDIN) {
        let file = File::open(path).map_err(|error| unread(path.display(), &error))?;
        return Ok(Box::new(BufReader::new(file)));
    }
    if io::stdin().is_terminal() {
        tell("reading texts from the terminal, one a line; Ctrl-D ends them");
    }
    Ok(Box::new(BufReader::new(standard::input())))
}

fn unread(name: impl fmt::Display, error: &io::Error) -> Failure {
    Failure::refused(format!("can't read {name}: {error}"))
}

/// Sends the texts of a file; returns how many there are.
pub(super) async fn feed(
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
        // What has no line feed is the last. Who read on would have a terminal's end typed once more.
        if !outgoing.send(text.to_owned()).await || !line.ends_with(b"\n") {
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
    use futures_util::FutureExt;

    use super::super::{CallLimits, Texts, channel};
    use super::*;

    const LIMITS: CallLimits = CallLimits { texts_max: 3, bytes_max: 8, text_bytes_max: 6 };

    fn lines(input: &[u8]) -> Result<Vec<String>, Failure> {
        let (outgoing, mut texts) = channel(LIMITS);
        // There is room for all of it.
        feed(&mut &*input, "in", LIMITS.text_bytes_max, &outgoing).now_or_never().unwrap()?;
        fed(&mut texts)
    }

    fn fed(texts: &mut Texts) -> Result<Vec<String>, Failure> {
        let read = std::iter::from_fn(|| texts.incoming.try_recv().ok());
        read.map(|read| read.map(|(text, _)| text)).collect()
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

    /// A terminal, and what each of its reads brings.
    struct Typed(std::array::IntoIter<&'static [u8], 2>);

    impl Read for Typed {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let typed = self.0.next().ok_or_else(|| io::Error::other("it is asked once more"))?;
            bytes[..typed.len()].copy_from_slice(typed);
            Ok(typed.len())
        }
    }

    #[test]
    fn the_end_is_not_asked_for_twice() {
        let typed: [[&[u8]; 2]; 2] = [[b"a\nb", b""], [b"a\nb\n", b""]];
        for typed in typed {
            let (outgoing, mut texts) = channel(LIMITS);
            let mut reader = BufReader::new(Typed(typed.into_iter()));
            let read = feed(&mut reader, "in", LIMITS.text_bytes_max, &outgoing);
            assert_eq!(read.now_or_never(), Some(Ok(2)));
            assert_eq!(fed(&mut texts).unwrap(), ["a", "b"]);
        }
    }
}
