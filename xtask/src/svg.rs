//! A small writer of charts as SVG: no fonts, no scripts, readable on light and on dark pages.

use std::fmt::Write;

const WIDTH: f64 = 780.0;
const HEIGHT: f64 = 420.0;
/// The plot's own rectangle; the legend stands to its right.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 364.0;

const STYLE: &str = "\
<style>\
text{font:12px system-ui,sans-serif;fill:#57606a}\
.title{font-size:15px;font-weight:600;fill:#24292f}\
.axis{stroke:#8c959f}.grid{stroke:#8c959f;stroke-opacity:.25}\
@media(prefers-color-scheme:dark){text{fill:#9da7b3}.title{fill:#e6edf3}}\
</style>";

/// Colours that stand out from white and from black, and from each other without red and green.
pub const COLOURS: [&str; 7] =
    ["#2f81f7", "#d9730d", "#1b9e77", "#a371f7", "#c4a000", "#db61a2", "#8b949e"];

/// One axis.
pub struct Axis {
    pub label: String,
    pub logarithmic: bool,
    /// Where it has a mark and a line; the first and the last are its ends.
    pub ticks: Vec<f64>,
}

/// A line through points.
pub struct Series {
    pub name: String,
    pub colour: &'static str,
    pub dashed: bool,
    pub points: Vec<(f64, f64)>,
}

/// A group of bars: its name, and a value for each kind of bar.
pub struct Group {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

impl Axis {
    /// From zero to what holds `most`, in steps of 1, 2 or 5.
    pub fn linear(label: &str, most: f64) -> Self {
        let rough = (most / 5.0).max(f64::MIN_POSITIVE);
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(power);
        let steps = (most / step).ceil().max(1.0) as u32;
        let ticks = (0..=steps).map(|n| f64::from(n) * step).collect();
        Self { label: label.to_owned(), logarithmic: false, ticks }
    }

    /// Marks at 1, 2 and 5 of every power of ten, from what lies below `least` to what lies above
    /// `most`.
    pub fn logarithmic(label: &str, least: f64, most: f64) -> Self {
        let first = least.log10().floor() as i32;
        let last = most.log10().ceil() as i32;
        let all: Vec<f64> = (first..=last)
            .flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * 10_f64.powi(power)))
            .collect();
        let start = all.iter().rposition(|tick| *tick <= least).unwrap_or(0);
        let end = all.iter().position(|tick| *tick >= most).unwrap_or(all.len() - 1);
        Self { label: label.to_owned(), logarithmic: true, ticks: all[start..=end].to_vec() }
    }

    /// Marks at these values.
    pub fn doubling(label: &str, ticks: Vec<f64>) -> Self {
        Self { label: label.to_owned(), logarithmic: true, ticks }
    }

    /// Where `value` lies, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.logarithmic { value.ln() } else { value };
        let (first, last) = match (self.ticks.first(), self.ticks.last()) {
            (Some(first), Some(last)) if first < last => (*first, *last),
            _ => return 0.0,
        };
        (scale(value) - scale(first)) / (scale(last) - scale(first))
    }
}

/// Lines over two axes.
pub fn lines(title: &str, (x, y): (&Axis, &Axis), series: &[Series]) -> String {
    let mut out = open(title, y);
    for tick in &x.ticks {
        let place = across(x.place(*tick));
        line(&mut out, "grid", (place, TOP), (place, BOTTOM));
        text(&mut out, (place, BOTTOM + 18.0), "middle", &number(*tick));
    }
    text(&mut out, (f64::midpoint(LEFT, RIGHT), BOTTOM + 40.0), "middle", &x.label);
    for (number, Series { name, colour, dashed, points }) in series.iter().enumerate() {
        let dash = if *dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let places: Vec<String> = points
            .iter()
            .map(|(a, b)| format!("{:.1},{:.1}", across(x.place(*a)), up(y.place(*b))))
            .collect();
        let places = places.join(" ");
        write!(
            out,
            "<polyline points=\"{places}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"2\"{dash}/>"
        )
        .ok();
        for (a, b) in points {
            let (cx, cy) = (across(x.place(*a)), up(y.place(*b)));
            write!(out, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"{colour}\"/>").ok();
        }
        let row = TOP + 8.0 + 20.0 * number as f64;
        write!(
            out,
            "<path d=\"M{} {row}h24\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            RIGHT + 16.0
        )
        .ok();
        text(&mut out, (RIGHT + 46.0, row + 4.0), "start", name);
    }
    out + "</svg>\n"
}

/// Bars in groups; `kinds` are the names of a group's bars.
pub fn bars(title: &str, y: &Axis, kinds: &[String], groups: &[Group]) -> String {
    let mut out = open(title, y);
    let room = (RIGHT - LEFT) / groups.len().max(1) as f64;
    let width = room * 0.8 / kinds.len().max(1) as f64;
    for (number, Group { name, values }) in groups.iter().enumerate() {
        let start = LEFT + room * (number as f64 + 0.1);
        for (kind, value) in values.iter().enumerate() {
            let Some(value) = value else { continue };
            let (left, top) = (start + width * kind as f64, up(y.place(*value)));
            let (height, colour) = (BOTTOM - top, COLOURS[kind % COLOURS.len()]);
            write!(
                out,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height:.1}\" \
                 fill=\"{colour}\"/>",
                width - 1.0
            )
            .ok();
        }
        let middle = LEFT + room * (number as f64 + 0.5);
        for (row, word) in name.split(' ').enumerate() {
            text(&mut out, (middle, BOTTOM + 18.0 + 14.0 * row as f64), "middle", word);
        }
    }
    for (number, name) in kinds.iter().enumerate() {
        let (row, colour) = (TOP + 8.0 + 20.0 * number as f64, COLOURS[number % COLOURS.len()]);
        let left = RIGHT + 16.0;
        write!(
            out,
            "<rect x=\"{left}\" y=\"{}\" width=\"14\" height=\"12\" fill=\"{colour}\"/>",
            row - 6.0
        )
        .ok();
        text(&mut out, (left + 22.0, row + 4.0), "start", name);
    }
    out + "</svg>\n"
}

/// Everything that all charts have: frame, title and the left axis.
fn open(title: &str, y: &Axis) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\
         <title>{0}</title>{STYLE}<text class=\"title\" x=\"{LEFT}\" y=\"22\">{0}</text>",
        escaped(title)
    );
    for tick in &y.ticks {
        let place = up(y.place(*tick));
        line(&mut out, "grid", (LEFT, place), (RIGHT, place));
        text(&mut out, (LEFT - 8.0, place + 4.0), "end", &number(*tick));
    }
    line(&mut out, "axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
    line(&mut out, "axis", (LEFT, TOP), (LEFT, BOTTOM));
    text(&mut out, (LEFT, TOP - 6.0), "start", &y.label);
    out
}

fn across(place: f64) -> f64 {
    LEFT + place.clamp(0.0, 1.0) * (RIGHT - LEFT)
}

fn up(place: f64) -> f64 {
    BOTTOM - place.clamp(0.0, 1.0) * (BOTTOM - TOP)
}

// Writing to a String can't fail.
fn line(out: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    write!(out, "<path class=\"{class}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"/>").ok();
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let text = escaped(text);
    write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>").ok();
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A tick's value without needless digits.
fn number(value: f64) -> String {
    let digits = if value >= 10.0 || value.fract() == 0.0 { 0 } else { 2 };
    let text = format!("{value:.digits$}");
    if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_their_values_in_round_steps() {
        assert_eq!(Axis::linear("", 93.0).ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(Axis::linear("", 7.0).ticks, [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(Axis::logarithmic("", 1.5, 30.0).ticks, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        let axis = Axis::doubling("", vec![128.0, 512.0]);
        assert!((axis.place(256.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_chart_is_one_element_and_says_what_it_shows() {
        let points = vec![(1.0, 2.0), (10.0, 4.0)];
        let series = Series { name: "a < b".into(), colour: COLOURS[0], dashed: true, points };
        let (x, y) = (Axis::logarithmic("load", 1.0, 10.0), Axis::linear("ms", 4.0));
        let chart = lines("Time & load", (&x, &y), &[series]);
        assert!(chart.starts_with("<svg ") && chart.ends_with("</svg>\n"));
        for part in ["Time &amp; load", "a &lt; b", "stroke-dasharray", "prefers-color-scheme"] {
            assert!(chart.contains(part), "{part}");
        }
        let group = Group { name: "low logs".into(), values: vec![Some(50.0), None] };
        let kinds = ["f32".to_owned(), "int8".to_owned()];
        let chart = bars("Share", &Axis::linear("%", 100.0), &kinds, &[group]);
        assert_eq!(chart.matches("<rect").count(), 3, "one bar and two in the legend");
    }

    #[test]
    fn ticks_are_short() {
        assert_eq!([0.0, 0.5, 0.25, 5.0, 1000.0].map(number), ["0", "0.5", "0.25", "5", "1000"]);
    }
}
