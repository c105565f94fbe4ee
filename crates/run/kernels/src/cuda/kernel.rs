//! Kernels by name: compiled when they are called for the first time, and how they are launched.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

use super::Cuda;
use super::compile::Compiler;
use super::driver::{Argument, CudaContext, KernelLaunch};
use super::source::{KernelFormat, KernelSource, Variant, architecture};

/// Threads of a block where nothing else is said.
pub(super) const THREADS: usize = 256;

pub(super) struct Kernels {
    compiler: Compiler,
    architecture: String,
    context: Arc<CudaContext>,
    modules: RefCell<HashMap<Variant, usize>>,
    functions: RefCell<HashMap<(Variant, &'static str), usize>>,
}

impl Kernels {
    pub(super) fn new(context: &Arc<CudaContext>, compiler: Compiler) -> Self {
        Self {
            compiler,
            architecture: architecture(context.major, context.minor),
            context: context.clone(),
            modules: RefCell::default(),
            functions: RefCell::default(),
        }
    }

    pub(super) fn architecture(&self) -> &str {
        &self.architecture
    }

    pub(super) fn compiler_version(&self) -> (i32, i32) {
        self.compiler.version()
    }

    /// Where it cannot be had, the device has an error and launches nothing.
    fn function(&self, variant: Variant, name: &'static str) -> usize {
        if let Some(function) = self.functions.borrow().get(&(variant, name)) {
            return *function;
        }
        let (module, mut function) = (self.module(variant), 0);
        let symbol = CString::new(name).expect("names of kernels have no zeros");
        let is_found = self.context.ask(format_args!("find the kernel {name}"), |driver| {
            driver.module_function(&mut function, module, symbol.as_ptr())
        });
        if !is_found {
            return 0;
        }
        self.allow_shared(function);
        self.functions.borrow_mut().insert((variant, name), function);
        function
    }

    /// More shared memory than 48 KiB has to be asked for: all that a block can have, besides what the kernel has anyway.
    fn allow_shared(&self, function: usize) {
        const STATIC: i32 = 1;
        const MOST: i32 = 8;
        let mut fixed = 0;
        self.context.ask("tell a kernel's shared memory", |driver| {
            driver.function_property(&mut fixed, STATIC, function)
        });
        let most = self.context.shared as i32;
        self.context.ask("give a kernel shared memory", |driver| {
            driver.function_attribute(function, MOST, most - fixed)
        });
    }

    fn module(&self, variant: Variant) -> usize {
        if let Some(module) = self.modules.borrow().get(&variant) {
            return *module;
        }
        let (source, mut module) = (variant.source, 0);
        let image = self.compiler.image(source.name(), &self.architecture, source.text(), &variant.options());
        let image = match image {
            Ok(image) => image,
            Err(error) => {
                self.context.keep(error);
                return 0;
            }
        };
        let is_loaded = self.context.ask(format_args!("load the kernels of {}", source.name()), |driver| {
            driver.module_load(&mut module, image.as_ptr().cast())
        });
        if !is_loaded {
            return 0;
        }
        self.modules.borrow_mut().insert(variant, module);
        module
    }
}

/// A kernel that is about to be launched.
pub(super) struct KernelCall<'a> {
    cuda: &'a Cuda,
    variant: Variant,
    name: &'static str,
}

impl Cuda {
    pub(super) fn kernel(
        &self,
        source: KernelSource,
        formats: [KernelFormat; 3],
        name: &'static str,
    ) -> KernelCall<'_> {
        KernelCall { cuda: self, variant: Variant { source, formats, dim: 0, group: 0 }, name }
    }
}

impl KernelCall<'_> {
    pub(super) fn sized(mut self, dim: usize, group: usize) -> Self {
        (self.variant.dim, self.variant.group) = (dim, group);
        self
    }

    pub(super) fn launch(self, launch: KernelLaunch, arguments: &[Argument<'_>]) {
        let Self { cuda, variant, name } = self;
        if !cuda.context.has_failed() {
            cuda.context.launch(name, cuda.kernels.function(variant, name), launch, arguments);
        }
    }

    /// A thread for each of `pieces`, or several pieces where there are very many.
    pub(super) fn over(self, pieces: usize, arguments: &[Argument<'_>]) {
        let blocks = pieces.div_ceil(THREADS).min(self.cuda.context.processors * 32);
        self.launch(blocks_of(blocks, THREADS), arguments);
    }
}

/// A line of blocks.
pub(super) fn blocks_of(blocks: usize, threads: usize) -> KernelLaunch {
    KernelLaunch { grid: [blocks, 1, 1], block: [threads, 1, 1], shared: 0 }
}

pub(super) fn word(number: usize) -> Argument<'static> {
    Argument::Word(number as u64)
}

pub(super) fn address(of: u64) -> Argument<'static> {
    Argument::Word(of)
}

pub(super) fn float(number: f32) -> Argument<'static> {
    Argument::Word(u64::from(number.to_bits()))
}

pub(super) fn flag(is: bool) -> Argument<'static> {
    Argument::Word(u64::from(is))
}

/// Two values of four bytes as a struct has them.
pub(super) fn two(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}
