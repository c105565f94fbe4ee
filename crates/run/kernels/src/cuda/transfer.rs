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
        context.check(context.driver().stream_create(&mut stream, 1), "make a stream")?;
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
        let driver = self.context.driver();
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut event = spare.unwrap_or_default();
        if spare.is_none() {
            // 2: without the time, which makes it cheaper.
            self.context.check(driver.event_create(&mut event, 2), "make an event")?;
        }
        let moment = Moment { transfers: self.clone(), event };
        self.context.check(driver.event_record(event, stream), "mark a moment")?;
        Ok(moment)
    }

    /// What comes next on this stream waits until a moment has passed.
    pub fn wait_for(&self, moment: &Moment) -> Result<(), CudaError> {
        let code = self.context.driver().stream_wait(self.stream, moment.event, 0);
        self.context.check(code, "let a stream wait")
    }

    /// Copies bytes of the GPU.
    pub fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), CudaError> {
        let code = self.context.driver().device_to_device(to, from, bytes, self.stream);
        self.context.check(code, "copy")
    }

    /// Copies bytes to the processor's memory and waits for them.
    pub fn read(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        let driver = self.context.driver();
        let code = driver.device_to_host(to.as_mut_ptr().cast(), from, to.len(), self.stream);
        self.context.check(code, "give elements")?;
        self.context.check(driver.stream_synchronize(self.stream), "finish its transfers")
    }

    /// Copies bytes from the processor's memory and waits for them.
    pub fn write(&self, from: &[u8], to: u64) -> Result<(), CudaError> {
        let driver = self.context.driver();
        let code = driver.host_to_device(to, from.as_ptr().cast(), from.len(), self.stream);
        self.context.check(code, "take elements")?;
        self.context.check(driver.stream_synchronize(self.stream), "finish its transfers")
    }
}

impl Moment {
    /// Whether everything before it is done.
    pub fn has_passed(&self) -> Result<bool, CudaError> {
        let context = &self.transfers.context;
        match context.driver().event_query(self.event) {
            NOT_READY => Ok(false),
            code => context.check(code, "finish its work").map(|()| true),
        }
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
