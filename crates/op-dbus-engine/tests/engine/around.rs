//! A backend that another is inside of.

use op_dbus_engine::{Backend, BackendError, Batch, Description};

/// The backend `inner`, whose batches are computed by `run`, with `inner` at hand.
pub fn around<R>(inner: Box<dyn Backend>, run: R) -> Box<dyn Backend>
where
    R: FnMut(&mut dyn Backend, &Batch<'_>, &mut [f32]) -> Result<(), BackendError> + Send + 'static,
{
    Box::new(Around { inner, run })
}

struct Around<R> {
    inner: Box<dyn Backend>,
    run: R,
}

impl<R> Backend for Around<R>
where
    R: FnMut(&mut dyn Backend, &Batch<'_>, &mut [f32]) -> Result<(), BackendError> + Send,
{
    fn description(&self) -> &Description {
        self.inner.description()
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        (self.run)(&mut *self.inner, batch, out)
    }
}
