//! `op-dbus embed`: texts in, vectors out, streamed.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ArgGroup;
use futures_util::StreamExt;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::caller::{CALLS_IN_FLIGHT, Caller};
use super::cut::Cut;
use super::output::{Format, Writer};
use super::packed::{Options, Reply, Space};
use super::places::Places;
use super::texts::{Source, Texts};
use super::{BusArgs, Done, Failure, standard, tell, terminal};

/// Names of standard output. To open it anew would lose what others have written there.
const STDOUT: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// Turn texts into vectors
#[derive(clap::Args)]
#[command(group = ArgGroup::new("format").args(["json", "npy", "csv"]))]
#[command(after_help = "\
Texts come from the arguments, from files, or from standard input, one text a line (an empty line is
an empty text), without the byte order mark that a file may begin with. On a terminal a short table
is shown; a pipe gets one vector a line. Any amount of text is streamed in constant memory.

Examples:
  op-dbus embed 'the disk is full' 'no space left on device'
  op-dbus embed --npy --output logs.npy --file /var/log/syslog
  op-dbus embed --npy --encoding i8 --output small.npy < titles.txt
  op-dbus embed --json --truncate mean < articles.txt")]
pub struct Args {
    /// Texts to embed; `-` alone is standard input
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    texts: Vec<String>,
    /// Read texts from a file, one a line; `-` is standard input; may be repeated
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,

    /// One JSON object a line: index, truncated, space, vector
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// One NumPy matrix (npy 1.0)
    #[arg(long, help_heading = "Output")]
    npy: bool,
    /// One vector a line, values with a comma between
    #[arg(long, help_heading = "Output")]
    csv: bool,
    /// Write to a file, not to standard output (`-`); one that is there is replaced when all is written
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,

    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    bus: BusArgs,
}

impl Args {
    fn format(&self) -> Format {
        let for_person = self.output.is_none() && io::stdout().is_terminal();
        match (self.json, self.npy, self.csv) {
            (true, ..) => Format::Json,
            (_, true, _) => Format::Npy,
            (.., true) => Format::Csv,
            _ if for_person => {
                let in_chunks = self.options.cut().is_whole();
                Format::Table { colour: terminal::colour(), in_chunks }
            }
            _ => Format::Plain,
        }
    }
}

pub async fn run(mut args: Args) -> Done {
    args.output.take_if(|path| STDOUT.iter().any(|name| path == Path::new(name)));
    let format = args.format();
    if format == Format::Npy && args.output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::usage("--npy is not for a terminal: use --output, or a pipe"));
    }
    let caller = Caller::connect(&args.bus.bus, args.options).await?;
    let output = args.output;
    let to = output.as_deref();
    // What can't be read makes no output.
    let source = Source::new(args.texts, args.file)?;
    let mut writer = Writer::new(format, to).map_err(|error| Failure::writing(to, &error))?;
    source.apart_from(writer.begun(to))?;
    let texts = Texts::read(source, caller.options.limits(caller.inline));
    let places = texts.places();
    let mut summary = Summary { cut: caller.options.cut(), ..Summary::default() };

    let replies = texts.calls().map(async |(first, call)| caller.call(&places, first, call?).await);
    let replies = replies.buffered(CALLS_IN_FLIGHT);
    let mut replies = std::pin::pin!(replies);
    let progress = progress(to.is_some());
    while let Some(parts) = replies.next().await {
        for reply in parts? {
            summary.take(&reply)?;
            progress.inc(reply.texts.len() as u64);
            writer.write(&reply).map_err(|error| Failure::writing(to, &error))?;
        }
        // Of a matrix nothing is written before the last text, which may never come.
        if format == Format::Npy && to.is_none() && standard::is_unread() {
            return Err(Failure::output(&io::ErrorKind::BrokenPipe.into()));
        }
    }
    progress.finish_and_clear();
    if format == Format::Npy && summary.texts == 0 {
        // A matrix without rows has its columns all the same.
        let none = caller.call_packed(0, Vec::new(), |_| None).await?;
        writer.write(&none).map_err(|error| Failure::writing(to, &error))?;
    }
    writer.finish().map_err(|error| Failure::writing(to, &error))?;
    if let Some(warning) = summary.warning(&places) {
        tell(warning);
    }
    if matches!(format, Format::Table { .. }) && summary.texts > 0 {
        let line = summary.line();
        writeln!(standard::output(), "{line}").map_err(|error| Failure::output(&error))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A counter on a terminal, unless the vectors themselves go there.
fn progress(to_file: bool) -> ProgressBar {
    if !to_file && io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {texts}, {rate}, {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
        .with_key("texts", |state: &ProgressState, out: &mut dyn fmt::Write| {
            out.write_str(&terminal::counted(state.pos(), "text", "texts")).ok();
        })
        .with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
            let rate = state.per_sec();
            let digits = usize::from(rate < 10.0);
            // It is a line in memory.
            write!(out, "{rate:.digits$}/s").ok();
        });
    ProgressBar::new_spinner().with_style(style)
}

/// What is known of all calls so far.
#[derive(Default)]
struct Summary {
    texts: u64,
    tokens: u64,
    space: Space,
    description: String,
    cut: Cut,
}

impl Summary {
    /// Counts `reply`, and refuses it if its vectors can't be compared with those before: the
    /// service may have been given another level meanwhile.
    fn take(&mut self, reply: &Reply) -> Result<(), Failure> {
        if let Some(change) = self.space.change(reply) {
            let texts = terminal::counted(self.texts, "text", "texts");
            return Err(Failure::refused(format!(
                "{change} after {texts}; start again, with --expect-space to hold it"
            )));
        }
        for cut in &reply.truncated {
            self.cut.add(self.texts + u64::from(*cut));
        }
        self.description =
            format!("{} dimensions, {}, {}", reply.dimensions, reply.model, reply.served_by);
        self.texts += reply.texts.len() as u64;
        self.tokens += reply.tokens;
        Ok(())
    }

    /// The sentence about texts that were too long.
    fn warning(&self, places: &Places) -> Option<String> {
        let told = self.cut.warning(places)?;
        Some(match self.cut.is_loss() {
            true => format!("{told}; `--truncate` says what to do with such texts"),
            false => told,
        })
    }

    fn line(&self) -> String {
        let vectors = terminal::counted(self.texts, "vector", "vectors");
        format!("{vectors} of {}; {} tokens", self.description, terminal::grouped(self.tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cut::Truncate;
    use super::*;
    use crate::cli::packed::tests::reply;

    #[test]
    fn cut_texts_are_counted_over_all_calls_and_listed_up_to_a_limit() {
        let (mut summary, places) = (Summary::default(), Places::default());
        summary.take(&reply(3, "s", &[])).unwrap();
        assert_eq!(summary.warning(&places), None);
        summary.take(&reply(3, "s", &[0])).unwrap();
        let one = "1 text is longer than the model reads and cut (index 3); ";
        let warning = summary.warning(&places).unwrap();
        assert!(warning.starts_with(one), "{warning}");
        let many: Vec<u32> = (0..12).collect();
        summary.take(&reply(12, "s", &many)).unwrap();
        let warning = summary.warning(&places).unwrap();
        let all = "13 texts are longer than the model reads and cut \
                   (indices 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, …)";
        assert!(warning.starts_with(all), "{warning}");
    }

    #[test]
    fn nothing_is_said_to_be_cut_of_texts_that_are_embedded_in_chunks() {
        let mut summary = Summary { cut: Cut::by(Some(Truncate::Mean)), ..Summary::default() };
        let places = Places::default();
        summary.take(&reply(2, "s", &[1])).unwrap();
        let one = "1 text is longer than the model reads and embedded as the mean of its chunks (index 1)";
        assert_eq!(summary.warning(&places).unwrap(), one);
        summary.take(&reply(2, "s", &[1])).unwrap();
        let both = "2 texts are longer than the model reads and each embedded as the mean of its \
                    chunks (indices 1, 3)";
        assert_eq!(summary.warning(&places).unwrap(), both);
    }

    #[test]
    fn a_change_of_space_on_the_way_is_refused() {
        let mut summary = Summary::default();
        summary.take(&reply(1, "a-f32", &[])).unwrap();
        summary.take(&reply(1, "a-f32,bf16", &[])).unwrap();
        summary.take(&reply(1, "a-bf16", &[])).unwrap();
        let refused = summary.take(&reply(1, "b-f32", &[])).unwrap_err();
        assert!(refused.message().contains("to b-f32 after 3 texts; "), "{}", refused.message());
        let mut summary = Summary::default();
        summary.take(&reply(1, "a-f32", &[])).unwrap();
        let refused = summary.take(&reply(1, "b-f32", &[])).unwrap_err();
        assert!(refused.message().contains("to b-f32 after 1 text; "), "{}", refused.message());
    }
}
