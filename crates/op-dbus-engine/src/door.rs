//! The door to the tokenizer threads: each user has so many pieces of work behind it at a time, so that one
//! who has much of it keeps the threads busy and others waiting for no more than that. What takes much memory
//! comes through it one at a time, and waits before it rather than on a thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, mpsc};

use crate::error::Error;
use crate::prepare::Task;

/// Pieces of work of one user behind the door, for each thread: one that is done, and one that waits.
const OF_USER: usize = 2;

/// Of work that takes much memory, one piece is behind the doors of all engines at a time.
pub(crate) static HEAVY: Semaphore = Semaphore::const_new(1);

/// A piece of work behind the door. Its user has one more when it is done.
pub(crate) struct Let {
    pub task: Task,
    pub place: OwnedSemaphorePermit,
    /// That of [`HEAVY`], where it takes much memory.
    pub heavy: Option<SemaphorePermit<'static>>,
}

/// Where work waits to be let in.
#[derive(Debug)]
pub(crate) struct Door {
    tasks: mpsc::Sender<Let>,
    threads: usize,
    /// Users who have work.
    lines: Mutex<HashMap<u32, Places>>,
}

/// The places in a user's line, which all who are in it share.
#[derive(Clone, Debug)]
struct Places {
    places: Arc<Semaphore>,
    alone: Arc<Semaphore>,
    /// Of who waits for [`HEAVY`].
    turn: Arc<Semaphore>,
}

/// The line of one user, in the order of coming.
pub(crate) struct Line<'a> {
    door: &'a Door,
    of: Places,
}

impl Door {
    /// A door to so many threads, which take what the second value gives.
    pub fn new(threads: usize) -> (Self, mpsc::Receiver<Let>) {
        // Users wait before it rather than behind it.
        let (tasks, receiver) = mpsc::channel(OF_USER * threads);
        (Self { tasks, threads, lines: Mutex::default() }, receiver)
    }

    /// The line of a user.
    pub fn line(&self, uid: u32) -> Line<'_> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|_, line| line.is_used());
        let of = lines.entry(uid).or_insert_with(|| {
            let [places, alone, turn] =
                [OF_USER * self.threads, 1, 1].map(|many| Arc::new(Semaphore::new(many)));
            Places { places, alone, turn }
        });
        Line { door: self, of: of.clone() }
    }
}

impl Places {
    /// Whether somebody is in the line, or has a place: what is let in has left the line.
    fn is_used(&self) -> bool {
        [&self.places, &self.alone, &self.turn]
            .into_iter()
            .any(|place| Arc::strong_count(place) > 1)
    }
}

impl Line<'_> {
    /// Waits until no other call of the user has this.
    ///
    /// # Errors
    /// `ShuttingDown`.
    pub async fn alone(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.of.alone.clone().acquire_owned().await.map_err(closed)
    }

    /// Returns once the work is let in, which may take much memory.
    ///
    /// # Errors
    /// `ShuttingDown`.
    pub async fn send(&self, task: Task, is_heavy: bool) -> Result<(), Error> {
        // One of each user waits for the others', and with one place, so that the user's other work goes on.
        let turn =
            if is_heavy { Some(self.of.turn.acquire().await.map_err(closed)?) } else { None };
        let place = self.of.places.clone().acquire_owned().await.map_err(closed)?;
        // Behind the place, for which others would wait as well.
        let heavy = if is_heavy { Some(HEAVY.acquire().await.map_err(closed)?) } else { None };
        drop(turn);
        self.door.tasks.send(Let { task, place, heavy }).await.map_err(closed)
    }
}

fn closed<E>(_: E) -> Error {
    Error::ShuttingDown
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};

    use super::*;

    fn work() -> Task {
        Box::new(|_| ())
    }

    async fn is_let_in(line: &Line<'_>) -> bool {
        is_sent(pin!(line.send(work(), false))).await
    }

    async fn is_sent(sending: Pin<&mut impl Future<Output = Result<(), Error>>>) -> bool {
        tokio::select! {
            biased;
            sent = sending => sent.is_ok(),
            () = std::future::ready(()) => false,
        }
    }

    async fn let_in(line: &Line<'_>) -> usize {
        let mut count = 0;
        while is_let_in(line).await {
            count += 1;
        }
        count
    }

    #[tokio::test]
    async fn one_call_of_a_user_is_alone() {
        let (door, _receiver) = Door::new(1);
        let (line, again, other) = (door.line(1), door.line(1), door.line(2));
        let first = line.alone().await.unwrap();
        tokio::select! {
            biased;
            _ = again.alone() => panic!("there are two"),
            _ = other.alone() => {}
        }
        drop((line, first));
        drop(again.alone().await.unwrap());
    }

    #[tokio::test]
    async fn what_takes_much_memory_waits_for_its_turn_and_keeps_nothing_else_waiting() {
        let (door, mut receiver) = Door::new(2);
        let (one, other) = (door.line(1), door.line(2));
        one.send(work(), true).await.unwrap();
        let (mut second, mut third) = (pin!(one.send(work(), true)), pin!(one.send(work(), true)));
        let mut others = pin!(other.send(work(), true));
        assert!(!is_sent(second.as_mut()).await && !is_sent(third.as_mut()).await);
        assert!(!is_sent(others.as_mut()).await);
        assert_eq!(let_in(&one).await, 2, "of four places one is behind the door, and one waits");
        assert!(is_let_in(&other).await);
        drop(receiver.recv().await);
        second.await.unwrap();
        assert!(!is_sent(third.as_mut()).await);
        while receiver.try_recv().is_ok() {}
        assert!(!is_sent(third.as_mut()).await, "the other user's comes first");
        others.await.unwrap();
        drop(receiver.recv().await);
        third.await.unwrap();
    }

    #[tokio::test]
    async fn one_users_work_leaves_room_for_that_of_others() {
        let (door, mut receiver) = Door::new(3);
        let (one, other) = (door.line(1), door.line(2));
        assert_eq!(let_in(&one).await, 6);
        let taken: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).take(3).collect();
        assert!(!is_let_in(&one).await, "three are under way, and three wait");
        assert!(!is_let_in(&door.line(1)).await, "another call of the same user");
        assert!(is_let_in(&other).await);
        drop(taken);
        assert_eq!(let_in(&one).await, 2, "the room that is left");
        drop((one, other, receiver));
        drop((door.line(3), door.line(4)));
        door.line(5);
        assert_eq!(door.lines.lock().unwrap().len(), 1, "who has no work is forgotten");
    }
}
