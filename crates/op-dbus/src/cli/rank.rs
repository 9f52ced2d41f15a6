//! `op-dbus rank`: the texts nearest to a query, from any number of candidates.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use futures_util::StreamExt;

use super::caller::{CALLS_IN_FLIGHT, Caller};
use super::cut::Cut;
use super::packed::{Options, Reply, Space};
use super::places::Places;
use super::texts::{self, CallLimits, Source, Texts};
use super::{BusArgs, Done, Failure, standard, tell, terminal};

/// Characters of a candidate that a terminal shows.
const TERMINAL_TEXT_CHARS: usize = 160;

/// Order texts by how near they are to a query
#[derive(clap::Args)]
#[command(after_help = "\
Candidates come from the arguments, from files, or from standard input, one a line; blank lines are
passed over, and so is the byte order mark that a file may begin with. A score is the cosine of two
vectors: 1 is the same direction, 0 unrelated.

Examples:
  op-dbus rank 'why did it stop' 'disk full' 'user logged in' 'killed: out of memory'
  journalctl -b -o cat | op-dbus rank --top 5 'network trouble'
  op-dbus rank --json 'invoice from March' --file titles.txt")]
pub struct Args {
    /// What is looked for
    query: String,
    /// Texts to order; `-` alone is standard input
    #[arg(value_name = "CANDIDATE", conflicts_with = "file")]
    candidates: Vec<String>,
    /// Read candidates from a file, one a line; `-` is standard input; may be repeated
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// How many to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
    /// One JSON object a line: rank, index, score, text
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

pub async fn run(args: Args) -> Done {
    let caller = Caller::connect(&args.bus.bus, Options::default()).await?;
    texts::check(&args.query, caller.inline.text_bytes_max, "the query")?;
    // The query is a text of each call.
    let limits = CallLimits { texts_max: (caller.inline.texts_max - 1).max(1), ..caller.inline };
    let texts = Texts::read(Source::new(args.candidates, args.file)?, limits);
    let places = texts.places();
    let replies = texts
        .calls()
        .map(async |(first, call)| {
            let (indices, mut texts): (Vec<u64>, Vec<String>) =
                (first..).zip(call?).filter(worth_it).unzip();
            if texts.is_empty() {
                return Ok(None);
            }
            texts.push(args.query.clone());
            // Unlike `Rank`, this says which texts were cut. What it says of one is by its number in the call.
            let called = |number| Some(name(&places, &indices, number));
            let reply = caller.call_packed(first, texts, called).await?;
            Ok::<_, Failure>(Some((indices, reply)))
        })
        .buffered(CALLS_IN_FLIGHT);
    let mut replies = std::pin::pin!(replies);
    let mut best = Vec::new();
    let (mut cut, mut query_is_cut, mut space) = (Cut::default(), false, Space::default());
    while let Some(answer) = replies.next().await {
        let Some((indices, reply)) = answer? else { continue };
        if let Some(change) = space.change(&reply) {
            let ranked = "so that the candidates can't be compared; start again";
            return Err(Failure::refused(format!("{change} on the way, {ranked}")));
        }
        for position in &reply.truncated {
            match indices.get(*position as usize) {
                Some(index) => cut.add(*index),
                None => query_is_cut = true,
            }
        }
        best.extend(scored(indices, reply));
        keep_best(&mut best, args.top as usize);
    }
    let for_person = std::io::stdout().is_terminal();
    print(&mut standard::output(), &best, args.json, for_person)
        .map_err(|error| Failure::output(&error))?;
    if query_is_cut {
        tell("the query is longer than the model reads and cut");
    }
    if let Some(warning) = cut.warning(&places) {
        tell(warning);
    }
    Ok(ExitCode::SUCCESS)
}

/// A blank line has a vector too, but nobody looks for it.
fn worth_it((_, text): &(u64, String)) -> bool {
    !text.trim().is_empty()
}

/// What a text of a call is called: blank lines are in none, and the query is the last.
fn name(places: &Places, indices: &[u64], number: u64) -> String {
    let index = usize::try_from(number).ok().and_then(|number| indices.get(number));
    index.map_or("the query".to_owned(), |index| places.name(*index))
}

/// A candidate and how near it is.
#[derive(Clone, Debug, PartialEq)]
struct Scored {
    /// Number over all candidates.
    index: u64,
    score: f64,
    text: String,
}

/// The candidates of one call, whose last text is the query.
fn scored(indices: Vec<u64>, reply: Reply) -> Vec<Scored> {
    let scores = reply.cosines_with_last();
    let candidates = indices.into_iter().zip(scores).zip(reply.texts);
    candidates.map(|((index, score), text)| Scored { index, score, text }).collect()
}

/// Keeps so many of the best, best first; the earlier one where two are equal.
fn keep_best(candidates: &mut Vec<Scored>, count: usize) {
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.index.cmp(&b.index)));
    candidates.truncate(count);
}

/// One line of `--json`.
#[derive(serde::Serialize)]
struct JsonLine<'a> {
    rank: usize,
    index: u64,
    score: f64,
    text: &'a str,
}

/// A line for each candidate, which itself may have line feeds where it was an argument.
fn print(
    out: &mut impl Write,
    best: &[Scored],
    json: bool,
    for_person: bool,
) -> std::io::Result<()> {
    for (position, Scored { index, score, text }) in best.iter().enumerate() {
        if json {
            let line = JsonLine { rank: position + 1, index: *index, score: *score, text };
            serde_json::to_writer(&mut *out, &line)?;
            writeln!(out)?;
        } else if for_person {
            writeln!(out, "{score:>7.4}  {}", terminal::printable(text, TERMINAL_TEXT_CHARS))?;
        } else {
            writeln!(out, "{score:.6}\t{}", text.replace('\n', "·"))?;
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::packed::tests::reply;

    fn candidate(index: u64, score: f64) -> Scored {
        Scored { index, score, text: String::new() }
    }

    #[test]
    fn the_best_of_all_calls_are_kept_in_order() {
        let all = [(1, 0.5), (0, 0.1), (7, 0.9), (5, 0.5), (6, -1.0)];
        let mut best: Vec<Scored> = all.map(|(index, score)| candidate(index, score)).into();
        keep_best(&mut best, 3);
        let indices: Vec<u64> = best.iter().map(|candidate| candidate.index).collect();
        assert_eq!(indices, [7, 1, 5]);
    }

    #[test]
    fn a_candidate_is_one_line_in_every_form() {
        let best = [Scored { index: 0, score: 0.5, text: "a\tb\nc".to_owned() }];
        let printed = |json, for_person| {
            let mut out = Vec::new();
            print(&mut out, &best, json, for_person).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(printed(false, false), "0.500000\ta\tb·c\n");
        assert_eq!(printed(false, true), " 0.5000  a b·c\n");
        let json = "{\"rank\":1,\"index\":0,\"score\":0.5,\"text\":\"a\\tb\\nc\"}\n";
        assert_eq!(printed(true, false), json);
    }

    #[test]
    fn every_candidate_of_a_call_is_scored_and_the_query_is_not() {
        let scored = scored(vec![3, 5], reply(3, "s", &[]));
        assert_eq!(scored.iter().map(|scored| scored.index).collect::<Vec<_>>(), [3, 5]);
    }

    #[test]
    fn a_refused_text_has_its_number_among_the_candidates() {
        let said = |sentence| {
            let failure = Failure::refused(sentence);
            let called = |number| Some(name(&Places::default(), &[256, 259], number));
            failure.about_texts(256, called).message().to_owned()
        };
        assert_eq!(said("text 1 has 602 tokens"), "text 259 has 602 tokens");
        assert_eq!(said("text 2 has 602 tokens"), "the query has 602 tokens");
        assert_eq!(said("it is full"), "in the call that begins with text 256: it is full");
    }
}
