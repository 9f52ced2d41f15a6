//! The tasks of the tokenizer threads: each user has so many with them at a time, so that one who has much to do
//! keeps the threads busy and others waiting for no more than that. What takes much memory comes to them one at a
//! time, and waits before that rather than on a thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit, mpsc};

use crate::error::Error;
use crate::prepare::Task;
use crate::wait::until;

/// Tasks of one user that the threads have, for each thread: one that is done, and one that waits.
const TASKS_OF_USER: usize = 2;

/// Of tasks that take much memory, the threads of all engines have one at a time.
static HEAVY: Semaphore = Semaphore::const_new(1);

/// That there is room for a task with the threads of an engine, or [`Heavy`] is free. Who waits for what others wait for
/// as well does so by this and takes it where it is used: of a queue, somebody would be given it whose thread hangs.
pub(crate) static ROOM: Notify = Notify::const_new();

/// The right to a task that takes much memory.
pub(crate) struct Heavy(Option<SemaphorePermit<'static>>);

impl Drop for Heavy {
    fn drop(&mut self) {
        drop(self.0.take());
        ROOM.notify_waiters();
    }
}

#[cfg(test)]
impl Heavy {
    /// It, once nobody else has it.
    pub async fn taken() -> Self {
        until(&ROOM, || HEAVY.try_acquire().ok().map(|permit| Self(Some(permit)))).await
    }
}

/// A task that the threads have. Its user may have another one there when it is done.
pub(crate) struct QueuedTask {
    pub task: Task,
    pub permit: OwnedSemaphorePermit,
    /// Where it takes much memory.
    pub heavy: Option<Heavy>,
}

/// The way to the tokenizer threads.
#[derive(Debug)]
pub(crate) struct TokenizerThreads {
    tasks: mpsc::Sender<QueuedTask>,
    threads: usize,
    /// Users who have work.
    users: Mutex<HashMap<u32, UserLimits>>,
}

/// What bounds a user's tasks, those of all calls together.
#[derive(Clone, Debug)]
struct UserLimits {
    tasks: Arc<Semaphore>,
    alone: Arc<Semaphore>,
    /// Of who waits for [`Heavy`].
    heavy: Arc<Semaphore>,
}

/// One user's way there, in the order of coming.
pub(crate) struct UserTasks<'a> {
    threads: &'a TokenizerThreads,
    limits: UserLimits,
}

impl TokenizerThreads {
    /// The way to so many threads, which take what the second value gives.
    pub fn new(threads: usize) -> (Self, mpsc::Receiver<QueuedTask>) {
        // Users wait for their permits rather than in there.
        let (tasks, receiver) = mpsc::channel(TASKS_OF_USER * threads);
        (Self { tasks, threads, users: Mutex::default() }, receiver)
    }

    /// The way of a user.
    pub fn of_user(&self, uid: u32) -> UserTasks<'_> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, limits| limits.are_used());
        let limits = users.entry(uid).or_insert_with(|| {
            let [tasks, alone, heavy] =
                [TASKS_OF_USER * self.threads, 1, 1].map(|many| Arc::new(Semaphore::new(many)));
            UserLimits { tasks, alone, heavy }
        });
        UserTasks { threads: self, limits: limits.clone() }
    }
}

impl UserLimits {
    /// Whether a call is about to send a task, or has a permit: that of a task that the threads have as well.
    fn are_used(&self) -> bool {
        [&self.tasks, &self.alone, &self.heavy]
            .into_iter()
            .any(|semaphore| Arc::strong_count(semaphore) > 1)
    }
}

impl UserTasks<'_> {
    /// Waits until no other call of the user has this.
    ///
    /// # Errors
    /// `ShuttingDown`.
    pub async fn alone(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.limits.alone.clone().acquire_owned().await.map_err(closed)
    }

    /// Returns once the threads have the task, which may take much memory.
    ///
    /// # Errors
    /// `ShuttingDown`.
    pub async fn send(&self, task: Task, is_heavy: bool) -> Result<(), Error> {
        // One of each user waits for the others', and with one permit, so that the user's other work goes on.
        let turn =
            if is_heavy { Some(self.limits.heavy.acquire().await.map_err(closed)?) } else { None };
        let permit = self.limits.tasks.clone().acquire_owned().await.map_err(closed)?;
        let look = || {
            // Given back without a word where there is no room: who misses it meanwhile is told of that room.
            let heavy = if is_heavy { Some(HEAVY.try_acquire().ok()?) } else { None };
            match self.threads.tasks.try_reserve() {
                Ok(place) => Some(Ok((place, heavy))),
                Err(TrySendError::Full(())) => None,
                Err(TrySendError::Closed(())) => Some(Err(Error::ShuttingDown)),
            }
        };
        let (place, heavy) = tokio::select! {
            biased;
            room = until(&ROOM, look) => room?,
            () = self.threads.tasks.closed() => return Err(Error::ShuttingDown),
        };
        drop(turn);
        let heavy = heavy.map(|permit| Heavy(Some(permit)));
        place.send(QueuedTask { task, permit, heavy });
        Ok(())
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

    async fn is_queued(tasks: &UserTasks<'_>) -> bool {
        is_sent(pin!(tasks.send(work(), false))).await
    }

    async fn is_sent(sending: Pin<&mut impl Future<Output = Result<(), Error>>>) -> bool {
        tokio::select! {
            biased;
            sent = sending => sent.is_ok(),
            () = std::future::ready(()) => false,
        }
    }

    async fn queued(tasks: &UserTasks<'_>) -> usize {
        let mut count = 0;
        while is_queued(tasks).await {
            count += 1;
        }
        count
    }

    #[tokio::test]
    async fn one_call_of_a_user_is_alone() {
        let (threads, _receiver) = TokenizerThreads::new(1);
        let (tasks, again, other) = (threads.of_user(1), threads.of_user(1), threads.of_user(2));
        let first = tasks.alone().await.unwrap();
        tokio::select! {
            biased;
            _ = again.alone() => panic!("there are two"),
            _ = other.alone() => {}
        }
        drop((tasks, first));
        drop(again.alone().await.unwrap());
    }

    #[tokio::test]
    async fn what_takes_much_memory_waits_for_its_turn_and_keeps_nothing_else_waiting() {
        let (threads, mut receiver) = TokenizerThreads::new(2);
        let (one, other) = (threads.of_user(1), threads.of_user(2));
        one.send(work(), true).await.unwrap();
        let (mut second, mut third) = (pin!(one.send(work(), true)), pin!(one.send(work(), true)));
        let mut others = pin!(other.send(work(), true));
        assert!(!is_sent(second.as_mut()).await && !is_sent(third.as_mut()).await);
        assert!(!is_sent(others.as_mut()).await);
        assert_eq!(queued(&one).await, 2, "one permit of four is in use, and one waits");
        assert!(is_queued(&other).await);
        drop(receiver.recv().await);
        second.await.unwrap();
        assert!(!is_sent(third.as_mut()).await && !is_sent(others.as_mut()).await);
        while receiver.try_recv().is_ok() {}
        others.await.unwrap();
        assert!(!is_sent(third.as_mut()).await);
        drop(receiver.recv().await);
        third.await.unwrap();
    }

    /// As the thread of a direct connection that hangs in closing a descriptor.
    #[tokio::test]
    async fn who_waits_and_is_never_asked_again_keeps_nobody_else_waiting() {
        let (threads, mut receiver) = TokenizerThreads::new(1);
        let (frozen, other) = (threads.of_user(1), threads.of_user(2));
        let another = Heavy::taken().await;
        let (mut heavy, mut heavy_of_other) =
            (Box::pin(frozen.send(work(), true)), pin!(other.send(work(), true)));
        assert!(!is_sent(heavy.as_mut()).await && !is_sent(heavy_of_other.as_mut()).await);
        drop(another);
        heavy_of_other.await.unwrap();
        // The same with the places of an engine's threads.
        assert_eq!(queued(&other).await, 1);
        let mut light = Box::pin(frozen.send(work(), false));
        let of_third = threads.of_user(3);
        let mut third = pin!(of_third.send(work(), false));
        assert!(!is_sent(light.as_mut()).await && !is_sent(third.as_mut()).await);
        drop(receiver.recv().await);
        ROOM.notify_waiters();
        third.await.unwrap();
    }

    #[tokio::test]
    async fn one_users_work_leaves_room_for_that_of_others() {
        let (threads, mut receiver) = TokenizerThreads::new(3);
        let (one, other) = (threads.of_user(1), threads.of_user(2));
        assert_eq!(queued(&one).await, 6);
        let taken: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).take(3).collect();
        assert!(!is_queued(&one).await, "three are under way, and three wait");
        assert!(!is_queued(&threads.of_user(1)).await, "another call of the same user");
        assert!(is_queued(&other).await);
        drop(taken);
        assert_eq!(queued(&one).await, 2, "the room that is left");
        drop((one, other, receiver));
        drop((threads.of_user(3), threads.of_user(4)));
        threads.of_user(5);
        assert_eq!(threads.users.lock().unwrap().len(), 1, "who has no work is forgotten");
    }
}
