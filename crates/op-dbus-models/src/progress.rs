//! What a person sees while a pull or an import runs: bars on a terminal, plain lines elsewhere.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{DecimalBytes, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::printable;

/// Where the steps of an operation are told.
pub struct Progress(Kind);

enum Kind {
    Lines(Mutex<Box<dyn Write + Send>>),
    Terminal(MultiProgress),
}

impl Progress {
    /// Bars on standard error when it is a terminal, else one plain line per finished step.
    #[must_use]
    pub fn stderr() -> Self {
        if std::io::stderr().is_terminal() {
            Self(Kind::Terminal(MultiProgress::with_draw_target(ProgressDrawTarget::stderr())))
        } else {
            Self::lines(std::io::stderr())
        }
    }

    /// Plain lines into `sink`.
    #[must_use]
    pub fn lines(sink: impl Write + Send + 'static) -> Self {
        Self(Kind::Lines(Mutex::new(Box::new(sink))))
    }

    /// Nothing.
    #[must_use]
    pub fn silent() -> Self {
        Self::lines(std::io::sink())
    }

    /// One line that stays.
    pub fn say(&self, text: impl Display) {
        let text = printable(&text.to_string(), usize::MAX);
        match &self.0 {
            // A progress line that cannot be written must not fail the work that it tells of.
            Kind::Lines(sink) => {
                if let Ok(mut sink) = sink.lock() {
                    writeln!(sink, "{text}").ok();
                }
            }
            Kind::Terminal(bars) => {
                bars.println(text).ok();
            }
        }
    }

    /// Begins a step; without a total it is shown as a spinner.
    pub(crate) fn step(&self, label: impl Into<String>, bytes_total: Option<u64>) -> Step<'_> {
        let label: String = label.into();
        let label = printable(&label, usize::MAX);
        let bar = match (&self.0, bytes_total) {
            (Kind::Terminal(bars), Some(total)) => bars.add(ProgressBar::new(total).with_style(
                style("  {msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}"),
            )),
            (Kind::Terminal(bars), None) => {
                let style = style("{spinner} {msg} {decimal_bytes} {elapsed}");
                bars.add(ProgressBar::new_spinner().with_style(style))
            }
            _ => ProgressBar::hidden(),
        };
        bar.set_message(label.clone());
        if bytes_total.is_none() && !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        Step { progress: self, bar, label }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// A step under way; dropped unfinished, it disappears without a line.
pub(crate) struct Step<'a> {
    progress: &'a Progress,
    bar: ProgressBar,
    label: String,
}

impl Step<'_> {
    pub(crate) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    pub(crate) fn set(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    /// Ends the step with a line that names it and its size.
    pub(crate) fn finish(self, bytes: u64) {
        self.bar.finish_and_clear();
        self.progress.say(format_args!("{} ({})", self.label, DecimalBytes(bytes)));
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::Lines;

    #[test]
    fn what_a_line_tells_of_is_kept_from_the_terminal() {
        let lines = Lines::default();
        let progress = Progress::lines(lines.clone());
        progress.step("folder: \x1b[2Jmodel.onnx", None).finish(1);
        progress.say("pip: \u{9b}31m");
        let told = lines.text();
        assert!(told.starts_with("folder: ·[2Jmodel.onnx ("), "{told:?}");
        assert!(told.ends_with(")\npip: ·31m\n"), "{told:?}");
    }
}
