//! Vectors as people and programs want them: a table, lines of numbers, CSV, JSON lines, npy.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use op_dbus_daemon::npy;

use super::numbers::Number;
use super::packed::Reply;
use super::standard;
use super::terminal::{Colour, paint, printable};
use super::unnamed::{self, Identity, Unnamed, identity};

/// Values of a vector that the table shows.
const TABLE_VALUES: usize = 4;
/// Characters of a text that the table shows.
const TABLE_TEXT_CHARS: usize = 36;

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For a person: norm and first values. Texts that were longer than the model reads were cut, or embedded in
    /// chunks.
    Table { colour: bool, in_chunks: bool },
    /// A vector a line, values with a space between.
    Plain,
    /// A vector a line, values with a comma between.
    Csv,
    /// An object a line.
    Json,
    /// One NumPy matrix.
    Npy,
}

/// A file that begins with room for an npy header.
struct Matrix {
    values: BufWriter<File>,
    /// The folder that the file is in, which nobody has named; nothing where it is the output itself and not copied
    /// there in the end.
    kept_in: Option<PathBuf>,
}

/// A file that is the output.
enum Output {
    /// Somebody else has opened it.
    Open,
    /// It has its name from the start.
    Named(File),
    /// It has none until it is whole.
    Unnamed(Unnamed),
}

/// Where vectors go.
pub struct Writer {
    format: Format,
    out: BufWriter<Box<dyn Write>>,
    /// Where an npy matrix is made: its header, which says the number of its rows, is written last.
    matrix: Option<Matrix>,
    output: Output,
    rows: u64,
    /// NumPy's name of an element, and how many a row has, as of the last reply.
    numpy: (&'static str, usize),
}

impl Writer {
    /// A writer to the file `path`, or to standard output.
    pub fn new(format: Format, path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else {
            let mut output = standard::output();
            // A closed one is told before anything is computed.
            output.flush()?;
            return Self::to(format, Box::new(output), None);
        };
        let (file, output) = if unnamed::is_open(path) {
            (unnamed::joined(path)?, Output::Open)
        } else if let Some(unnamed) = Unnamed::new(path, format == Format::Npy)? {
            (unnamed.open()?, Output::Unnamed(unnamed))
        } else {
            let file = unnamed::made(path)?;
            (file.try_clone()?, Output::Named(file))
        };
        // A matrix begins where its file does.
        let is_ours = !matches!(output, Output::Open) && file.metadata()?.is_file();
        let writer = match format == Format::Npy && is_ours {
            true => Self::to(format, Box::new(io::empty()), Some(file))?,
            false => Self::to(format, Box::new(file), None)?,
        };
        Ok(Self { output, ..writer })
    }

    /// The regular file that may have vectors in it before all texts are read, if there is one, where this was made for
    /// `path`.
    pub fn begun(&self, path: Option<&Path>) -> Option<Identity> {
        match self.output {
            Output::Unnamed(_) => None,
            _ => identity(path.unwrap_or(Path::new("/dev/stdout"))),
        }
    }

    /// A writer to `out`, or of a matrix to `file`.
    fn to(format: Format, out: Box<dyn Write>, file: Option<File>) -> io::Result<Self> {
        let matrix = match format {
            Format::Npy => Some(Matrix::new(file)?),
            _ => None,
        };
        let (out, output) = (BufWriter::new(out), Output::Open);
        Ok(Self { format, out, matrix, output, rows: 0, numpy: ("", 0) })
    }

    /// Writes the vectors of one call and hands them on.
    pub fn write(&mut self, reply: &Reply) -> io::Result<()> {
        if let Format::Table { colour, .. } = self.format
            && self.rows == 0
        {
            let heading = format!("{:>6}  {:>6}  {:<38}  text", "index", "norm", "vector");
            writeln!(self.out, "{}", paint(heading, Colour::Faint, colour))?;
        }
        self.numpy = reply.encoding.numpy(reply.dimensions);
        for position in 0..reply.texts.len() {
            self.row(reply, position)?;
            self.rows += 1;
        }
        // Of a matrix there is nothing in it yet.
        self.out.flush()
    }

    fn row(&mut self, reply: &Reply, position: usize) -> io::Result<()> {
        let length = reply.encoding.row_bytes(reply.dimensions);
        let row = &reply.bytes[position * length..(position + 1) * length];
        let numbers = || Number::of(row, reply.encoding);
        let index = reply.first + position as u64;
        let truncated = reply.truncated.binary_search(&(position as u32)).is_ok();
        match self.format {
            Format::Table { colour, in_chunks } => {
                let line = table_row(index, &numbers(), &reply.texts[position]);
                let mark = match (truncated, in_chunks) {
                    (false, _) => String::new(),
                    (true, false) => paint("  (cut)", Colour::Doubtful, colour),
                    (true, true) => paint("  (in chunks)", Colour::Faint, colour),
                };
                writeln!(self.out, "{line}{mark}")
            }
            Format::Plain => separated(&mut self.out, &numbers(), " "),
            Format::Csv => separated(&mut self.out, &numbers(), ","),
            Format::Json => {
                let line = JsonLine { index, truncated, space: &reply.space, vector: numbers() };
                serde_json::to_writer(&mut self.out, &line)?;
                self.out.write_all(b"\n")
            }
            Format::Npy => self.matrix.as_mut().map_or(Ok(()), |matrix| matrix.write(row)),
        }
    }

    /// Writes what can only be written at the end.
    pub fn finish(mut self) -> io::Result<()> {
        if let Some(matrix) = self.matrix.take() {
            let (element, columns) = self.numpy;
            matrix.finish(&npy::header(element, self.rows, columns), &mut self.out)?;
        }
        self.out.flush()?;
        match self.output {
            Output::Open => Ok(()),
            Output::Named(file) => unnamed::refuse_lost(&file),
            Output::Unnamed(unnamed) => unnamed.take_its_place(),
        }
    }
}

impl Matrix {
    /// A matrix in the empty file `output`, or in one of its own.
    fn new(output: Option<File>) -> io::Result<Self> {
        let (file, kept_in) = match output {
            Some(file) => (file, None),
            None => unnamed::temporary().map(|(file, folder)| (file, Some(folder)))?,
        };
        let mut values = BufWriter::new(file);
        // Not a header yet: an output that was broken off is nothing that NumPy would read.
        values.write_all(&[0; npy::HEADER_BYTES])?;
        Ok(Self { values, kept_in })
    }

    fn write(&mut self, row: &[u8]) -> io::Result<()> {
        self.values.write_all(row).map_err(|error| self.told(error))
    }

    fn finish(mut self, header: &[u8], out: &mut impl Write) -> io::Result<()> {
        let whole = self.values.flush();
        let whole = whole.and_then(|()| self.values.get_ref().write_all_at(header, 0));
        whole.map_err(|error| self.told(error))?;
        if self.kept_in.is_some() {
            let file = self.values.get_mut();
            file.rewind()?;
            io::copy(file, out)?;
        }
        Ok(())
    }

    /// An error of its file, with the folder where that is not the output's.
    fn told(&self, error: io::Error) -> io::Error {
        match &self.kept_in {
            Some(folder) => unnamed::kept_in(folder, &error),
            None => error,
        }
    }
}

/// One line of `--json`.
#[derive(serde::Serialize)]
struct JsonLine<'a> {
    index: u64,
    truncated: bool,
    space: &'a str,
    vector: Vec<Number>,
}

fn separated(out: &mut impl Write, row: &[Number], separator: &str) -> io::Result<()> {
    for (position, value) in row.iter().enumerate() {
        if position > 0 {
            out.write_all(separator.as_bytes())?;
        }
        write!(out, "{value}")?;
    }
    out.write_all(b"\n")
}

fn table_row(index: u64, row: &[Number], text: &str) -> String {
    // Bytes have a length that means nothing.
    let squares = row.iter().map(|number| match number {
        Number::Float(value) => Some(f64::from(*value).powi(2)),
        Number::Byte(_) => None,
    });
    let norm = squares
        .sum::<Option<f64>>()
        .map_or_else(|| "-".to_owned(), |sum| format!("{:.4}", sum.sqrt()));
    let mut values: String =
        row.iter().take(TABLE_VALUES).map(|value| format!("{value:>8.4} ")).collect();
    if row.len() > TABLE_VALUES {
        values.push('…');
    }
    let text = printable(text, TABLE_TEXT_CHARS);
    format!("{index:>6}  {norm:>6}  {values:<38}  {text}")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::{Arc, Mutex};

    use op_dbus_api::Info;
    use op_dbus_daemon::bus::encoding::Encoding;

    use super::super::cut::{Cut, Truncate};
    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The vectors of two calls.
    fn write(writer: &mut Writer) {
        for first in [0, 2] {
            let texts = ["one", "t\x1bwo"].map(str::to_owned).to_vec();
            let bytes = [0.6_f32, 0.8, -1.0, 1e-7].map(f32::to_le_bytes).concat();
            let vectors = (bytes.into(), Encoding::F32);
            let (space, truncated) = ("ab-f32".to_owned(), vec![1]);
            let info = Info { space, truncated, ..Info::default() };
            let reply = Reply::new((first, texts), vectors, (2, 2), info).unwrap();
            writer.write(&reply).unwrap();
        }
    }

    fn written(format: Format) -> Vec<u8> {
        let out = Shared::default();
        let mut writer = Writer::to(format, Box::new(out.clone()), None).unwrap();
        write(&mut writer);
        writer.finish().unwrap();
        out.0.lock().unwrap().clone()
    }

    fn lines(format: Format) -> Vec<String> {
        String::from_utf8(written(format)).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn plain_and_csv_are_one_vector_a_line_and_round_trip() {
        assert_eq!(lines(Format::Plain), ["0.6 0.8", "-1 0.0000001", "0.6 0.8", "-1 0.0000001"]);
        assert_eq!(lines(Format::Csv)[1], "-1,0.0000001");
        assert_eq!("0.0000001".parse::<f32>(), Ok(1e-7));
    }

    #[test]
    fn json_lines_count_over_all_calls() {
        let last: serde_json::Value = serde_json::from_str(&lines(Format::Json)[3]).unwrap();
        assert_eq!(last["index"], 3);
        assert_eq!(last["truncated"], true);
        assert_eq!(last["space"], "ab-f32");
        assert_eq!(last["vector"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn the_table_marks_cut_texts_and_hides_control_characters() {
        let table = lines(Format::Table { colour: false, in_chunks: false });
        assert_eq!(table.len(), 5);
        assert!(table[1].ends_with("  one"), "{}", table[1]);
        assert!(table[2].ends_with("  t·wo  (cut)"), "{}", table[2]);
    }

    #[test]
    fn the_table_says_of_no_text_in_chunks_that_it_is_cut() {
        let in_chunks = Cut::by(Some(Truncate::Mean)).is_whole();
        let table = lines(Format::Table { colour: false, in_chunks });
        assert!(table[1].ends_with("  one"), "{}", table[1]);
        assert!(table[2].ends_with("  t·wo  (in chunks)"), "{}", table[2]);
    }

    #[test]
    fn an_npy_file_has_its_header_and_its_values() {
        let file = written(Format::Npy);
        assert_eq!(file.len(), 128 + 4 * 2 * 4);
        assert_eq!(file[..128], npy::header("<f4", 4, 2));
        assert_eq!(&file[128..132], 0.6_f32.to_le_bytes());
    }

    #[test]
    fn a_matrix_in_a_file_of_its_own_is_the_same_and_nothing_before_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vectors.npy");
        let mut writer = Writer::new(Format::Npy, Some(&path)).unwrap();
        write(&mut writer);
        assert!(!path.exists());
        writer.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), written(Format::Npy));
    }

    #[test]
    fn an_old_file_is_as_it_was_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("old"), folder.path().join("link"));
        std::os::unix::fs::symlink("old", &link).unwrap();
        for format in [Format::Npy, Format::Csv] {
            fs::write(&path, "of an earlier run").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            let mut writer = Writer::new(format, Some(&link)).unwrap();
            write(&mut writer);
            assert_eq!(folder.path().read_dir().unwrap().count(), 2, "nothing is beside it");
            drop(writer);
            assert_eq!(fs::read(&path).unwrap(), b"of an earlier run", "{format:?}");
            let mut writer = Writer::new(format, Some(&link)).unwrap();
            write(&mut writer);
            writer.finish().unwrap();
            assert_eq!(fs::read(&path).unwrap(), written(format));
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
            assert!(link.is_symlink());
        }
    }

    #[test]
    fn what_is_no_file_of_its_own_is_written_to_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut writer = Writer::new(Format::Csv, Some(&path)).unwrap();
        write(&mut writer);
        assert_eq!(fs::read(&path).unwrap(), written(Format::Csv));
    }

    #[test]
    fn a_full_temporary_folder_is_not_told_as_the_output() {
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let matrix = |kept_in| Matrix { values: BufWriter::new(full()), kept_in };
        let written = |mut matrix: Matrix| matrix.write(&[0; 16 << 10]).unwrap_err();
        let finished = |matrix: Matrix| matrix.finish(&[0; 128], &mut io::sink()).unwrap_err();
        for error in [written(matrix(Some("/a".into()))), finished(matrix(Some("/a".into())))] {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            let why = " in /a, where it is kept until it is whole; set TMPDIR";
            assert!(error.to_string().contains(why), "{error}");
        }
        assert!(!written(matrix(None)).to_string().contains("TMPDIR"));
    }

    #[test]
    fn no_texts_are_an_empty_output() {
        let out = Shared::default();
        Writer::to(Format::Csv, Box::new(out.clone()), None).unwrap().finish().unwrap();
        assert!(out.0.lock().unwrap().is_empty());
    }
}
