//! The simulation: requests arrive at random, a balancer gives each to a node, and the workers of a node
//! take what waits there in batches. Events in the order of their times; nothing happens in between.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::random::Random;

/// One machine of the fleet.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Batches at once.
    pub workers: usize,
    /// Seconds of a batch without what its tokens take.
    pub batch_s: f64,
    /// Seconds of each token in a batch.
    pub token_s: f64,
    /// Tokens of a batch at most.
    pub batch_tokens: u64,
    /// Tokens of requests that are not answered yet, at most; what is beyond is refused.
    pub queue_tokens: u64,
    /// Seconds of a request that keep no worker busy: the network, HTTP, the client.
    pub way_s: f64,
}

/// A node that can't be reached for a while: what it has is lost, and nobody is told.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// From when, in seconds.
    pub from_s: f64,
    /// Until when.
    pub to_s: f64,
    /// How long the balancer takes to see that it is gone, or back.
    pub seen_s: f64,
    /// How long a request waits there before it is sent to another node.
    pub retry_s: f64,
}

/// What is simulated.
pub struct Fleet {
    /// How many nodes.
    pub nodes: usize,
    /// Each of them.
    pub node: Node,
    /// What happens to the first node.
    pub outage: Option<Outage>,
}

/// What is asked of it.
pub struct Load<'a> {
    /// Requests a second, in a Poisson process.
    pub rate: f64,
    /// How many.
    pub requests: usize,
    /// Tokens of a request.
    pub tokens: &'a dyn Fn(&mut Random) -> u64,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// When each answered request came, and how long it took, in seconds; ascending by the latter.
    pub times: Vec<(f64, f64)>,
    /// Requests that found the queue full.
    pub refused: usize,
    /// Requests that were sent to another node.
    pub retried: usize,
    /// Share of the workers' time in which they had a batch.
    pub utilisation: f64,
    /// Answered requests a second.
    pub per_s: f64,
}

impl Figures {
    /// The time that `percent` of the answered requests took at most, in seconds.
    pub fn percentile(&self, percent: f64) -> f64 {
        let place = (self.times.len() as f64 * percent / 100.0).ceil() as usize;
        self.times.get(place.saturating_sub(1)).map_or(0.0, |(_, took)| *took)
    }

    /// The mean time of the answered requests, in seconds.
    #[cfg(test)]
    pub fn mean(&self) -> f64 {
        self.times.iter().map(|(_, took)| took).sum::<f64>() / self.times.len().max(1) as f64
    }
}

/// Nanoseconds from the start.
type Time = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request comes, and with it the next is known.
    Arrival(usize),
    /// A request is sent to another node.
    Again(usize),
    /// A batch of a node is done, unless the node is gone since.
    Done { node: usize, batch: usize },
    /// The first node can't be reached, or can again.
    Reachable(bool),
    /// The balancer sees that.
    Seen(bool),
}

#[derive(Default)]
struct Request {
    came: Time,
    tokens: u64,
    /// Of these, what no batch has had yet or has at the moment.
    left: u64,
}

#[derive(Default)]
struct State {
    /// Requests, with the tokens of each that no batch has had.
    queue: VecDeque<(usize, u64)>,
    /// Requests that are not answered yet, for the balancer.
    requests: Vec<usize>,
    /// Tokens of these.
    tokens: u64,
    busy: usize,
    gone: bool,
    /// Whether the balancer takes it for gone.
    avoided: bool,
}

/// What a batch has of which requests; empty when it is done or lost.
type Batch = Vec<(usize, u64)>;

struct Run<'a> {
    fleet: &'a Fleet,
    events: BinaryHeap<Reverse<(Time, usize, Event)>>,
    count: usize,
    requests: Vec<Request>,
    states: Vec<State>,
    batches: Vec<Batch>,
    turn: usize,
    busy: Time,
    figures: Figures,
}

/// Simulates `load` on `fleet`; the same seed gives the same figures.
pub fn simulate(fleet: &Fleet, load: &Load<'_>, seed: u64) -> Figures {
    let mut random = Random::new(seed);
    let figures = Figures { times: vec![], refused: 0, retried: 0, utilisation: 0.0, per_s: 0.0 };
    let mut run = Run {
        fleet,
        events: BinaryHeap::new(),
        count: 0,
        requests: Vec::new(),
        states: (0..fleet.nodes).map(|_| State::default()).collect(),
        batches: Vec::new(),
        turn: 0,
        busy: 0,
        figures,
    };
    let mut due = 0.0;
    for number in 0..load.requests {
        due += random.gap(load.rate);
        let tokens = (load.tokens)(&mut random).max(1);
        run.requests.push(Request { came: time(due), tokens, left: tokens });
        run.at(time(due), Event::Arrival(number));
    }
    if let Some(Outage { from_s, to_s, seen_s, .. }) = fleet.outage {
        run.at(time(from_s), Event::Reachable(false));
        run.at(time(from_s + seen_s), Event::Seen(false));
        run.at(time(to_s), Event::Reachable(true));
        run.at(time(to_s + seen_s), Event::Seen(true));
    }
    run.finish()
}

impl Run<'_> {
    fn at(&mut self, time: Time, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, event)));
    }

    fn finish(mut self) -> Figures {
        let mut last = 0;
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            match event {
                Event::Arrival(request) => self.dispatch(now, request),
                Event::Again(request) => {
                    self.figures.retried += 1;
                    self.release(0, request);
                    self.dispatch(now, request);
                }
                Event::Done { node, batch } => {
                    self.done(now, node, batch);
                    last = now;
                }
                Event::Reachable(true) => self.states[0].gone = false,
                Event::Reachable(false) => self.lose(now),
                Event::Seen(back) => self.states[0].avoided = !back,
            }
        }
        let elapsed = seconds(last).max(f64::MIN_POSITIVE);
        let workers = (self.fleet.nodes * self.fleet.node.workers) as f64;
        self.figures.utilisation = seconds(self.busy) / elapsed / workers;
        self.figures.per_s = self.figures.times.len() as f64 / elapsed;
        self.figures.times.sort_by(|a, b| a.1.total_cmp(&b.1));
        self.figures
    }

    /// Gives a request to a node.
    fn dispatch(&mut self, now: Time, request: usize) {
        let Some(node) = self.choose() else {
            self.figures.refused += 1;
            return;
        };
        let tokens = self.requests[request].tokens;
        self.requests[request].left = tokens;
        let (state, limits) = (&mut self.states[node], &self.fleet.node);
        if state.tokens + tokens > limits.queue_tokens && !state.gone {
            self.figures.refused += 1;
            return;
        }
        state.requests.push(request);
        state.tokens += tokens;
        match self.fleet.outage {
            Some(outage) if state.gone => {
                self.at(now + time(outage.retry_s), Event::Again(request));
            }
            _ => {
                state.queue.push_back((request, tokens));
                self.start(now, node);
            }
        }
    }

    /// The node that has the fewest requests, in turn where several have (`balance leastconn`).
    fn choose(&mut self) -> Option<usize> {
        let nodes = self.states.len();
        let in_turn = (0..nodes).map(|step| (self.turn + step) % nodes);
        let there = in_turn.filter(|node| !self.states[*node].avoided);
        let node = there.min_by_key(|node| self.states[*node].requests.len())?;
        self.turn = (node + 1) % nodes;
        Some(node)
    }

    /// Gives what waits to workers that are idle.
    fn start(&mut self, now: Time, node: usize) {
        let limits = self.fleet.node;
        while self.states[node].busy < limits.workers && !self.states[node].queue.is_empty() {
            let state = &mut self.states[node];
            let (mut batch, mut room) = (Batch::new(), limits.batch_tokens);
            while let (Some((request, waiting)), true) = (state.queue.front_mut(), room > 0) {
                let taken = room.min(*waiting);
                batch.push((*request, taken));
                (room, *waiting) = (room - taken, *waiting - taken);
                if *waiting == 0 {
                    state.queue.pop_front();
                }
            }
            state.busy += 1;
            let tokens = limits.batch_tokens - room;
            let takes = time(limits.batch_s + limits.token_s * tokens as f64);
            self.busy += takes;
            self.batches.push(batch);
            self.at(now + takes, Event::Done { node, batch: self.batches.len() - 1 });
        }
    }

    fn done(&mut self, now: Time, node: usize, batch: usize) {
        let rows = std::mem::take(&mut self.batches[batch]);
        // Of a node that has lost it.
        if rows.is_empty() {
            return;
        }
        self.states[node].busy -= 1;
        for (request, tokens) in rows {
            self.requests[request].left -= tokens;
            if self.requests[request].left == 0 {
                self.release(node, request);
                let came = self.requests[request].came;
                let took = seconds(now - came) + self.fleet.node.way_s;
                self.figures.times.push((seconds(came), took));
            }
        }
        self.start(now, node);
    }

    /// A node has one request less.
    fn release(&mut self, node: usize, request: usize) {
        let state = &mut self.states[node];
        state.requests.retain(|other| *other != request);
        state.tokens -= self.requests[request].tokens;
    }

    /// The first node is gone, and what it was working on is sent to others, when it is missed.
    fn lose(&mut self, now: Time) {
        let Some(outage) = self.fleet.outage else { return };
        let state = &mut self.states[0];
        (state.gone, state.busy) = (true, 0);
        state.queue.clear();
        let requests = state.requests.clone();
        for batch in self
            .batches
            .iter_mut()
            .filter(|batch| batch.iter().any(|(request, _)| requests.contains(request)))
        {
            batch.clear();
        }
        for request in requests {
            self.at(now + time(outage.retry_s), Event::Again(request));
        }
    }
}

fn time(seconds: f64) -> Time {
    (seconds * 1e9).round() as Time
}

fn seconds(time: Time) -> f64 {
    time as f64 / 1e9
}
