//! A second stream of a GPU, for elements that travel while operators run.
//!
//! A transport of another crate puts its work on this stream by the handle; what it moves is ordered after operators by a [`Moment`], and the
//! transport looks whether it is done without stopping anything.

use std::sync::{Arc, Mutex, PoisonError};

use super::driver::CudaContext;
use super::{Cuda, CudaError};

/// A stream beside the one that operators run on. Any thread may use it.
pub struct Transfers {
    context: Arc<CudaContext>,
    stream: usize,
    /// Events that are not in use.
    spare: Mutex<Vec<usize>>,
}

/// What the operators had been asked to do when it was taken.
pub struct Moment {
    transfers: Arc<Transfers>,
    event: usize,
}

/// The driver's answer where work is not over.
const NOT_READY: i32 = 600;

impl Transfers {
    fn new(context: &Arc<CudaContext>) -> Result<Arc<Self>, CudaError> {
        let mut stream = 0;
        // 1: it does not wait for the driver's default stream.
        context.attempt("make a stream", |driver| driver.stream_create(&mut stream, 1))?;
        Ok(Arc::new(Self { context: context.clone(), stream, spare: Mutex::default() }))
    }

    /// The stream as the driver and NVIDIA's libraries know it, with its GPU made current in this thread.
    pub fn stream(&self) -> usize {
        self.context.driver();
        self.stream
    }

    /// All that operators have been asked for up to now.
    pub fn operators(self: &Arc<Self>) -> Result<Moment, CudaError> {
        self.moment(self.context.stream())
    }

    /// All that this stream has been asked for up to now.
    pub fn transfers(self: &Arc<Self>) -> Result<Moment, CudaError> {
        self.moment(self.stream)
    }

    fn moment(self: &Arc<Self>, stream: usize) -> Result<Moment, CudaError> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut event = spare.unwrap_or_default();
        if spare.is_none() {
            // 2: without the time, which makes it cheaper.
            self.context.attempt("make an event", |driver| driver.event_create(&mut event, 2))?;
        }
        let moment = Moment { transfers: self.clone(), event };
        self.context.attempt("mark a moment", |driver| driver.event_record(event, stream))?;
        Ok(moment)
    }

    /// What comes next on this stream waits until a moment has passed.
    pub fn wait_for(&self, moment: &Moment) -> Result<(), CudaError> {
        self.context.attempt("let a stream wait", |driver| driver.stream_wait(self.stream, moment.event, 0))
    }

    /// Copies bytes of the GPU.
    pub fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), CudaError> {
        self.context.attempt("copy", |driver| driver.device_to_device(to, from, bytes, self.stream))
    }

    /// Copies bytes to the processor's memory and waits for them.
    pub fn read(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        self.context.attempt("give elements", |driver| {
            driver.device_to_host(to.as_mut_ptr().cast(), from, to.len(), self.stream)
        })?;
        self.finish()
    }

    /// Copies bytes from the processor's memory and waits for them.
    pub fn write(&self, from: &[u8], to: u64) -> Result<(), CudaError> {
        self.context.attempt("take elements", |driver| {
            driver.host_to_device(to, from.as_ptr().cast(), from.len(), self.stream)
        })?;
        self.finish()
    }

    fn finish(&self) -> Result<(), CudaError> {
        self.context.attempt("finish its transfers", |driver| driver.stream_synchronize(self.stream))
    }

    /// The device's first error, if it has one.
    pub fn check(&self) -> Result<(), CudaError> {
        self.context.check()
    }

    /// Keeps what a library says that moves elements on this stream as the device's error, unless it has one; returns the one that stays.
    pub fn fail(&self, what: &str, why: String) -> CudaError {
        self.context.fail_in_library(what, why)
    }
}

impl Moment {
    /// Whether everything before it is done.
    pub fn has_passed(&self) -> Result<bool, CudaError> {
        let context = &self.transfers.context;
        let mut is_ready = true;
        context.attempt("finish its work", |driver| match driver.event_query(self.event) {
            NOT_READY => {
                is_ready = false;
                0
            }
            code => code,
        })?;
        Ok(is_ready)
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        // A stream that waits for the event keeps what it was told, also when the event is recorded anew.
        self.transfers.spare.lock().unwrap_or_else(PoisonError::into_inner).push(self.event);
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        // What is under way is finished first; nothing can be done where the driver refuses.
        let driver = self.context.driver();
        let events = self.spare.get_mut().unwrap_or_else(PoisonError::into_inner);
        events.drain(..).for_each(|event| {
            driver.event_destroy(event);
        });
        driver.stream_destroy(self.stream);
    }
}

impl Cuda {
    pub(crate) fn transfers(&self) -> Result<Arc<Transfers>, CudaError> {
        Transfers::new(&self.context)
    }
}
