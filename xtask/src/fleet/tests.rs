//! The simulation beside what queueing theory has in closed form, and what must hold of every run.

use super::random::Random;
use super::simulation::{Figures, Fleet, Load, Node, Outage, simulate};

/// A node that takes a millisecond for a token and nothing for a batch.
fn node(batch_tokens: u64) -> Node {
    let (batch_s, token_s, queue_tokens) = (0.0, 1e-3, u64::MAX);
    Node { workers: 1, batch_s, token_s, batch_tokens, queue_tokens, way_s: 0.0 }
}

fn run(
    nodes: usize,
    node: Node,
    (rate, requests): (f64, usize),
    tokens: &dyn Fn(&mut Random) -> u64,
) -> Figures {
    let fleet = Fleet { nodes, node, outage: None };
    simulate(&fleet, &Load { rate, requests, tokens }, 7)
}

fn close(found: f64, expected: f64, within: f64) {
    assert!((found / expected - 1.0).abs() < within, "{found} is not {expected} within {within}");
}

/// Requests of one size, each a batch of its own: the mean time is that of M/D/1.
#[test]
fn one_node_with_requests_of_one_size_is_m_d_1() {
    const SERVICE_S: f64 = 0.02;
    for load in [0.2, 0.5, 0.8, 0.9] {
        let figures = run(1, node(20), (load / SERVICE_S, 100_000), &|_| 20);
        close(figures.mean(), SERVICE_S * (1.0 + load / (2.0 * (1.0 - load))), 0.04);
        close(figures.utilisation, load, 0.02);
    }
}

/// Requests of exponential size, worked off one by one: times are exponential, as in M/M/1.
#[test]
fn one_node_with_requests_of_exponential_size_is_m_m_1() {
    const MEAN: f64 = 40.0;
    // A geometric number of tokens, in batches of one token, so that nothing waits for others' tokens.
    let tokens =
        |random: &mut Random| ((1.0 - random.unit()).ln() / (1.0 - 1.0 / MEAN).ln()).ceil() as u64;
    for load in [0.3, 0.7] {
        let service = 1.0 / (1e-3 * MEAN);
        let figures = run(1, node(1), (load * service, 40_000), &tokens);
        let left = service * (1.0 - load);
        close(figures.mean(), 1.0 / left, 0.05);
        close(figures.percentile(50.0), 2.0_f64.ln() / left, 0.05);
        close(figures.percentile(99.0), 100.0_f64.ln() / left, 0.07);
    }
}

/// Sizes of any distribution: the mean wait is what Pollaczek and Khinchine found.
#[test]
fn one_node_waits_as_pollaczek_and_khinchine_say() {
    for most in [1_u64, 8, 64] {
        let tokens = |random: &mut Random| 10 * super::between(random, 1, most);
        let sizes: Vec<f64> = (1..=most).map(|size| 0.01 * size as f64).collect();
        let mean = sizes.iter().sum::<f64>() / most as f64;
        let square = sizes.iter().map(|size| size * size).sum::<f64>() / most as f64;
        let rate = 0.6 / mean;
        let figures = run(1, node(1), (rate, 20_000), &tokens);
        close(figures.mean(), mean + rate * square / (2.0 * (1.0 - 0.6)), 0.05);
    }
}

#[test]
fn a_fleet_does_what_its_nodes_do_and_refuses_the_rest() {
    for nodes in [1, 3, 8] {
        let limited = Node { queue_tokens: 200, batch_s: 0.001, ..node(20) };
        // A request of 20 tokens takes 21 ms.
        let most = nodes as f64 / 0.021;
        let figures = run(nodes, limited, (2.0 * most, 50_000), &|_| 20);
        assert_eq!(figures.times.len() + figures.refused, 50_000);
        close(figures.per_s, most, 0.02);
        // Nobody waits longer than a full queue takes.
        assert!(figures.percentile(100.0) <= 0.021 * 10.0 + 1e-9, "{}", figures.percentile(100.0));
    }
}

#[test]
fn batches_that_fill_up_keep_up_where_single_requests_would_not() {
    let costly = |batch_tokens| Node { batch_s: 0.02, ..node(batch_tokens) };
    let load = (60.0, 20_000);
    let (alone, together) = (run(1, costly(5), load, &|_| 5), run(1, costly(500), load, &|_| 5));
    assert!(together.percentile(99.0) < 0.2 && alone.percentile(50.0) > 10.0);
}

#[test]
fn a_node_that_is_gone_loses_nothing_and_costs_its_requests_a_wait() {
    let outage = Outage { from_s: 20.0, to_s: 60.0, seen_s: 2.0, retry_s: 5.0 };
    let fleet = |outage| Fleet { nodes: 3, node: node(20), outage };
    let load = Load { rate: 50.0, requests: 5_000, tokens: &|_| 20 };
    let (whole, cut) = (simulate(&fleet(None), &load, 3), simulate(&fleet(Some(outage)), &load, 3));
    assert_eq!((whole.times.len(), cut.times.len(), cut.refused), (5_000, 5_000, 0));
    assert!(whole.retried == 0 && cut.retried > 0, "{}", cut.retried);
    let slow: Vec<f64> =
        cut.times.iter().filter(|(_, took)| *took > 5.0).map(|(came, _)| *came).collect();
    assert_eq!(slow.len(), cut.retried, "each waited once");
    assert!(slow.iter().all(|came| (19.0..23.0).contains(came)), "{slow:?}");
    assert_eq!(cut, simulate(&fleet(Some(outage)), &load, 3), "the same seed");
}
