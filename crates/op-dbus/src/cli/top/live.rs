//! The loop of the live view: readings and keys in, the page out.

use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use crossterm::event::{Event, EventStream, KeyCode, KeyModifiers};
use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::super::terminal::colour;
use super::super::{Done, Failure};
use super::interval::Interval;
use super::lines::View;
use super::reading::{Reading, Source};
use super::screen::{History, draw};

/// The terminal as the page has it. It is given back however this ends; a panic gives it back
/// before its message is printed. By itself ratatui would print that it can't where the terminal is gone,
/// which panics.
struct Screen(ManuallyDrop<DefaultTerminal>);

impl Screen {
    fn open() -> Result<Self, Failure> {
        ratatui::try_init().map(|terminal| Self(ManuallyDrop::new(terminal))).map_err(|error| {
            // What was changed before it failed.
            ratatui::try_restore().ok();
            Failure::refused(format!("can't take over the terminal ({error}): use --once"))
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::try_restore().ok();
        self.0.show_cursor().ok();
    }
}

/// Shows the service until a key or a signal ends it.
pub async fn run(source: Source, period: Duration) -> Done {
    let unheard = |error| Failure::refused(format!("can't listen for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(unheard)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(unheard)?;
    // A key in the terminal itself, and a signal where a program sends it.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(unheard)?;
    let mut screen = Screen::open()?;
    let mut events = EventStream::new();
    let (sender, mut readings) = mpsc::channel(1);
    tokio::spawn(sample(source, period, sender));
    let (newest, history) = Default::default();
    let mut page = Page { period, coloured: colour(), newest, history };
    loop {
        if let Err(error) = screen.0.draw(|frame| page.draw(frame)) {
            match error.raw_os_error() {
                // The terminal is gone, and the signal that tells is on its way.
                Some(libc::EIO) => break,
                _ => return Err(Failure::output(&error)),
            }
        }
        tokio::select! {
            Some(reading) = readings.recv() => page.take(reading),
            event = events.next() => match event {
                Some(Ok(event)) if ends(&event) => break,
                // Whatever else it is, a change of the size among it: the page is drawn again.
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    return Err(Failure::refused(format!("can't read the terminal: {error}")));
                }
                None => break,
            },
            _ = terminate.recv() => break,
            _ = hang_up.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads once a period for as long as somebody takes the readings.
async fn sample(
    mut source: Source,
    period: Duration,
    readings: mpsc::Sender<Result<Reading, Failure>>,
) {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if readings.send(source.read().await).await.is_err() {
            return;
        }
    }
}

/// Whether a key asks for the end.
fn ends(event: &Event) -> bool {
    event.as_key_press_event().is_some_and(|key| match key.code {
        KeyCode::Char('c') => key.modifiers == KeyModifiers::CONTROL,
        code => matches!(code, KeyCode::Char('q' | 'Q') | KeyCode::Esc),
    })
}

/// Everything that the page is drawn from.
struct Page {
    period: Duration,
    coloured: bool,
    newest: Option<Result<Reading, Failure>>,
    history: History,
}

impl Page {
    fn take(&mut self, reading: Result<Reading, Failure>) {
        self.history.push(match (&self.newest, &reading) {
            (Some(Ok(earlier)), Ok(later)) => Interval::between(earlier, later),
            _ => None,
        });
        self.newest = Some(reading);
    }

    fn draw(&self, frame: &mut ratatui::Frame<'_>) {
        let newest = self.newest.as_ref().map(Result::as_ref);
        let view = View {
            reading: newest.and_then(Result::ok),
            interval: self.history.newest(),
            absent: newest.and_then(Result::err).map(Failure::message),
            coloured: self.coloured,
            now: SystemTime::now(),
        };
        draw(frame, &view, &self.history, self.period);
    }
}

#[cfg(test)]
mod tests {
    use crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn keys_that_end_it() {
        let none = KeyModifiers::NONE;
        for (code, modifiers, is_end) in [
            (KeyCode::Char('q'), none, true),
            (KeyCode::Esc, none, true),
            (KeyCode::Char('c'), KeyModifiers::CONTROL, true),
            (KeyCode::Char('c'), none, false),
        ] {
            let key = Event::Key(KeyEvent::new(code, modifiers));
            assert_eq!(ends(&key), is_end, "{key:?}");
        }
        assert!(!ends(&Event::Resize(80, 24)));
    }
}
