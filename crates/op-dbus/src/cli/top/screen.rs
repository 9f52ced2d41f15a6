//! The page on a terminal of any size.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, RenderDirection, Sparkline, Wrap};

use super::super::terminal::{Colour, since};
use super::interval::Interval;
use super::lines::{Measure, RATES, View, rate_label, style};

/// Intervals that are remembered: as many as the widest terminal has columns for.
const HISTORY_MAX: usize = 512;
/// Columns left of a chart: the name and the newest value.
const LABEL_COLUMNS: u16 = 20;
/// Lines of a chart on a high terminal.
const CHART_LINES_MAX: u16 = 20;

/// The last intervals, newest first; none where nothing could be measured.
#[derive(Debug, Default)]
pub struct History(VecDeque<Option<Interval>>);

impl History {
    pub fn push(&mut self, interval: Option<Interval>) {
        self.0.truncate(HISTORY_MAX - 1);
        self.0.push_front(interval);
    }

    pub fn newest(&self) -> Option<&Interval> {
        self.0.front()?.as_ref()
    }

    fn series(&self, of: Measure) -> Vec<Option<u64>> {
        let value = |interval: &Option<Interval>| {
            interval.as_ref().map(|interval| of(interval).round() as u64)
        };
        self.0.iter().map(value).collect()
    }
}

/// Draws the page, which changes once a `period`, into all of `frame`.
pub fn draw(frame: &mut Frame<'_>, view: &View<'_>, history: &History, period: Duration) {
    let area = frame.area();
    let about = Paragraph::new(view.about()).wrap(Wrap { trim: false });
    let (times, counts) = (view.times(), view.counts());
    let counts: Vec<Line<'_>> = counts.into_iter().chain(view.devices()).collect();
    let height = |lines: &[Line<'_>]| u16::try_from(lines.len()).unwrap_or(u16::MAX);
    // A sentence why there is nothing to show, or why it is not as it should be, may need more than its line.
    let about_lines = about.line_count(area.width).min(area.height.into()) as u16;
    // Empty lines before each section but the first, which go first when there is no room.
    let fixed = about_lines + 3 + height(&counts) + height(&times);
    let wanted = height(&view.workers(usize::MAX));
    let spare = area.height.saturating_sub(fixed.saturating_add(wanted));
    let gap = u16::from(spare >= 4);
    let chart = (1 + spare.saturating_sub(4 * gap) / 2).min(CHART_LINES_MAX);
    // By itself: what has no room below is not to take lines from it.
    let [about_area, rest] =
        Layout::vertical([Constraint::Length(about_lines), Constraint::Min(0)]).areas(area);
    let [_, legend, texts, tokens, _, counts_area, _, times_area, _, workers_area] =
        Layout::vertical([
            Constraint::Length(gap),
            Constraint::Length(1),
            Constraint::Length(chart),
            Constraint::Length(chart),
            Constraint::Length(gap),
            Constraint::Length(height(&counts)),
            Constraint::Length(gap),
            Constraint::Length(height(&times)),
            Constraint::Length(gap),
            Constraint::Min(0),
        ])
        .areas(rest);
    frame.render_widget(about, about_area);
    draw_legend(frame, view, period, legend);
    for ((name, of), area) in RATES.into_iter().zip([texts, tokens]) {
        let label = rate_label(view.interval, of);
        draw_chart(frame, view, area, (name, label), &history.series(of));
    }
    frame.render_widget(Paragraph::new(counts), counts_area);
    frame.render_widget(Paragraph::new(times), times_area);
    let lines = view.workers(workers_area.height.into());
    frame.render_widget(Paragraph::new(lines), workers_area);
}

/// The line above the charts: how much time they show, and which key ends it.
fn draw_legend(frame: &mut Frame<'_>, view: &View<'_>, period: Duration, area: Rect) {
    const KEY: &str = "q ends";
    let columns = area.width.saturating_sub(LABEL_COLUMNS).min(HISTORY_MAX as u16);
    let shown = period * u32::from(columns);
    let [label, rest] =
        Layout::horizontal([Constraint::Length(LABEL_COLUMNS), Constraint::Min(0)]).areas(area);
    let every = period.as_secs_f64();
    frame.render_widget(view.span(format!("every {every} s"), Colour::Faint), label);
    let shown = format!("the last {}", since(shown.as_secs()));
    // Else one would lie over the other.
    if shown.len() + 1 + KEY.len() <= usize::from(rest.width) {
        frame.render_widget(view.span(shown, Colour::Faint), rest);
    }
    let key = view.span(KEY.to_owned(), Colour::Faint);
    frame.render_widget(Line::from(key).right_aligned(), rest);
}

/// The newest value on the left, and the ones before it, newest on the right.
fn draw_chart(
    frame: &mut Frame<'_>,
    view: &View<'_>,
    area: Rect,
    (name, value): (&str, String),
    series: &[Option<u64>],
) {
    let [label, chart] =
        Layout::horizontal([Constraint::Length(LABEL_COLUMNS), Constraint::Min(0)]).areas(area);
    let name = view.span(format!("{name:<9} "), Colour::Faint);
    frame.render_widget(Line::from(vec![name, value.into()]), label);
    let bars = if view.coloured { style(Colour::Good) } else { Default::default() };
    let sparkline = Sparkline::default().style(bars).data(series.iter().copied());
    frame.render_widget(sparkline.direction(RenderDirection::RightToLeft), chart);
}
