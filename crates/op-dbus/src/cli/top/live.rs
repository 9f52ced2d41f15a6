//! The loop of the live view: readings and keys in, the page out.

use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
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
use super::screen::{History, Pace, draw};

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
    let mut page = Page::new(period);
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
                Some(Ok(event)) => match Wish::of(&event) {
                    Some(Wish::End) => break,
                    Some(Wish::Pause) => page.pause(),
                    // Whatever else it is, a change of the size among it: the page is drawn again.
                    None => {}
                },
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

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    End,
    Pause,
}

impl Wish {
    fn of(event: &Event) -> Option<Self> {
        let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
            return None;
        };
        match (code, *modifiers) {
            (KeyCode::Char('c'), KeyModifiers::CONTROL) => Some(Self::End),
            (KeyCode::Char('q' | 'Q') | KeyCode::Esc, _) => Some(Self::End),
            (KeyCode::Char('p' | 'P'), _) => Some(Self::Pause),
            _ => None,
        }
    }
}

/// Everything that the page is drawn from.
struct Page {
    pace: Pace,
    coloured: bool,
    /// What is shown, which while paused is not the newest.
    shown: Shown,
    newest: Shown,
}

#[derive(Clone, Default)]
struct Shown {
    reading: Option<Reading>,
    absent: Option<String>,
    history: History,
    at: Option<SystemTime>,
}

impl Page {
    fn new(period: Duration) -> Self {
        let (shown, newest) = Default::default();
        Self { pace: Pace { period, paused: false }, coloured: colour(), shown, newest }
    }

    fn take(&mut self, reading: Result<Reading, Failure>) {
        let newest = &mut self.newest;
        let interval = match (&newest.reading, &reading) {
            (Some(earlier), Ok(later)) => Interval::between(earlier, later),
            _ => None,
        };
        newest.history.push(interval);
        newest.absent = reading.as_ref().err().map(|failure| failure.message().to_owned());
        newest.reading = reading.ok();
        newest.at = Some(SystemTime::now());
        if !self.pace.paused {
            self.shown = newest.clone();
        }
    }

    fn pause(&mut self) {
        self.pace.paused = !self.pace.paused;
        if !self.pace.paused {
            self.shown = self.newest.clone();
        }
    }

    fn draw(&self, frame: &mut ratatui::Frame<'_>) {
        let Shown { reading, absent, history, at } = &self.shown;
        let view = View {
            reading: reading.as_ref(),
            interval: history.newest(),
            absent: absent.as_deref(),
            coloured: self.coloured,
            now: at.unwrap_or_else(SystemTime::now),
        };
        draw(frame, &view, history, self.pace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(code: KeyCode, modifiers: KeyModifiers) -> Option<Wish> {
        Wish::of(&Event::Key(KeyEvent::new(code, modifiers)))
    }

    #[test]
    fn keys_that_end_it_and_the_one_that_pauses() {
        let none = KeyModifiers::NONE;
        assert_eq!(wish(KeyCode::Char('q'), none), Some(Wish::End));
        assert_eq!(wish(KeyCode::Esc, none), Some(Wish::End));
        assert_eq!(wish(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Wish::End));
        assert_eq!(wish(KeyCode::Char('c'), none), None);
        assert_eq!(wish(KeyCode::Char('p'), none), Some(Wish::Pause));
        assert_eq!(Wish::of(&Event::Resize(80, 24)), None);
    }
}
