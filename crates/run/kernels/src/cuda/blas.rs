//! Matrix products by cuBLASLt: a plan for each shape, made once.
#![expect(unsafe_code, reason = "calls the library")]

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use super::CudaError;
use super::driver::CudaContext;
use super::library::{BLAS, OpenLibrary, functions};
use super::source::KernelFormat;

functions! {
    /// cuBLASLt's functions.
    Functions {
        create = c"cublasLtCreate"(handle: &mut usize);
        product_create = c"cublasLtMatmulDescCreate"(product: &mut usize, compute: i32, scale: i32);
        product_set = c"cublasLtMatmulDescSetAttribute"(product: usize, attribute: i32, value: *const c_void, bytes: usize);
        layout_create = c"cublasLtMatrixLayoutCreate"(layout: &mut usize, format: i32, rows: u64, columns: u64, stride: i64);
        wish_create = c"cublasLtMatmulPreferenceCreate"(wish: &mut usize);
        wish_set = c"cublasLtMatmulPreferenceSetAttribute"(wish: usize, attribute: i32, value: *const c_void, bytes: usize);
        choose = c"cublasLtMatmulAlgoGetHeuristic"(
            handle: usize, product: usize, a: usize, b: usize, c: usize, d: usize, wish: usize, wanted: i32,
            choices: *mut BlasChoice, found: &mut i32,
        );
        multiply = c"cublasLtMatmul"(
            handle: usize, product: usize, alpha: &f32, a: u64, a_layout: usize, b: u64, b_layout: usize, beta: &f32,
            c: u64, c_layout: usize, d: u64, d_layout: usize, algorithm: *const [u64; 8], workspace: u64,
            workspace_bytes: usize, stream: usize,
        );
    }
}

/// What the library proposes: an algorithm, the workspace it wants, and more that is not looked at.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct BlasChoice {
    algorithm: [u64; 8],
    workspace: usize,
    state: i32,
    waves: f32,
    reserved: [i32; 4],
}

/// `d = alpha a b + beta c` as the library sees it: columns first, each side turned or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BlasShape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) turned: [bool; 2],
    /// Of `a`, `b`, `c` and `d`.
    pub(super) strides: [usize; 4],
    /// Of both sides, and of `c` and `d`.
    pub(super) formats: [KernelFormat; 2],
    /// The largest power of two up to 16 that divides all addresses, of each matrix.
    pub(super) alignments: [u32; 4],
    pub(super) has_bias: bool,
    pub(super) sums: Sums,
}

/// How exactly products of fp8 are summed; those of other formats are always summed in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Sums {
    /// In f32.
    Full,
    /// With fewer bits than f32 has between steps of a tensor core, as PyTorch's products have them by default.
    Fast,
}

struct Plan {
    product: usize,
    layouts: [usize; 4],
    algorithms: Vec<[u64; 8]>,
}

pub(super) struct Blas {
    functions: Functions,
    handle: usize,
    context: Arc<CudaContext>,
    plans: RefCell<HashMap<BlasShape, Option<Plan>>>,
    scales_lines: OnceCell<bool>,
}

/// Addresses of a product.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sides {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
    pub(super) d: u64,
    pub(super) beta: f32,
    pub(super) bias: u64,
    /// Of fp8: a scale for each line of `a` and of `b`.
    pub(super) scales: [u64; 2],
}

/// What cuBLASLt may use between its kernels.
pub(super) const WORKSPACE: usize = 32 << 20;

impl Blas {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let functions = Functions::load(&OpenLibrary::open(&BLAS)?)?;
        let mut handle = 0;
        match functions.create(&mut handle) {
            0 => Ok(Self {
                functions,
                handle,
                context: context.clone(),
                plans: RefCell::default(),
                scales_lines: OnceCell::new(),
            }),
            code => Err(CudaError::Refused { what: "start cuBLASLt", why: format!("status {code}") }),
        }
    }

    /// Whether the library could do it; it may have no algorithm for odd addresses and strides. True also where the device has failed: then no other way is to
    /// be tried.
    pub(super) fn multiply(&self, shape: &BlasShape, sides: &Sides, workspace: u64, stream: usize) -> bool {
        if self.context.has_failed() {
            return true;
        }
        let mut plans = self.plans.borrow_mut();
        let plan = plans.entry(*shape).or_insert_with(|| self.plan(shape, sides));
        let Some(plan) = plan else { return false };
        if shape.has_bias {
            self.set(plan.product, BIAS_POINTER, &sides.bias);
        }
        if shape.formats[0] == KernelFormat::Fp8 {
            self.set(plan.product, SCALES_OF_A, &sides.scales[0]);
            self.set(plan.product, SCALES_OF_B, &sides.scales[1]);
        }
        match self.run(plan, &plan.algorithms[0], sides, workspace, stream) {
            DONE => true,
            INVALID_VALUE | NOT_SUPPORTED => false,
            status => {
                self.fail("multiply matrices", status);
                true
            }
        }
    }

    fn fail(&self, what: &str, status: i32) {
        let name = match status {
            1 => "CUBLAS_STATUS_NOT_INITIALIZED",
            3 => "CUBLAS_STATUS_ALLOC_FAILED",
            8 => "CUBLAS_STATUS_ARCH_MISMATCH",
            11 => "CUBLAS_STATUS_MAPPING_ERROR",
            13 => "CUBLAS_STATUS_EXECUTION_FAILED",
            14 => "CUBLAS_STATUS_INTERNAL_ERROR",
            _ => "cuBLASLt status",
        };
        self.context.fail_in_library(what, format!("{name} ({status})"));
    }

    fn run(&self, plan: &Plan, algorithm: &[u64; 8], sides: &Sides, workspace: u64, stream: usize) -> i32 {
        let [a, b, c, d] = plan.layouts;
        self.functions.multiply(
            self.handle,
            plan.product,
            &1.0,
            sides.a,
            a,
            sides.b,
            b,
            &sides.beta,
            sides.c,
            c,
            sides.d,
            d,
            algorithm,
            workspace,
            WORKSPACE,
            stream,
        )
    }

    fn plan(&self, shape: &BlasShape, sides: &Sides) -> Option<Plan> {
        let (product, mut wish) = (self.product(), 0);
        for (attribute, turned) in [TURN_A, TURN_B].into_iter().zip(shape.turned) {
            self.set(product, attribute, &i32::from(turned));
        }
        if shape.has_bias {
            const WITH_BIAS: i32 = 4;
            self.set(product, EPILOGUE, &WITH_BIAS);
            self.set(product, BIAS_FORMAT, &kind(shape.formats[1]));
        }
        if shape.formats[0] == KernelFormat::Fp8 && !self.scale_lines(product, shape.sums, sides) {
            return None;
        }
        let (BlasShape { m, n, k, .. }, [from, to]) = (*shape, shape.formats);
        let side = |rows, columns, turned| if turned { (columns, rows) } else { (rows, columns) };
        let sizes = [side(m, k, shape.turned[0]), side(k, n, shape.turned[1]), (m, n), (m, n)];
        let formats = [from, from, to, to];
        let mut layouts = [0; 4];
        for (index, layout) in layouts.iter_mut().enumerate() {
            let ((rows, columns), stride) = (sizes[index], shape.strides[index] as i64);
            self.functions.layout_create(layout, kind(formats[index]), rows as u64, columns as u64, stride);
        }
        self.functions.wish_create(&mut wish);
        self.wish(wish, WORKSPACE_BYTES, &(WORKSPACE as u64));
        for (attribute, alignment) in (FIRST_ALIGNMENT..).zip(shape.alignments) {
            self.wish(wish, attribute, &alignment);
        }
        let (mut choices, mut found) = ([BlasChoice::default(); 8], 0);
        let [a, b, c, d] = layouts;
        let code = self.functions.choose(
            self.handle,
            product,
            a,
            b,
            c,
            d,
            wish,
            choices.len() as i32,
            choices.as_mut_ptr(),
            &mut found,
        );
        let usable = choices[..found.max(0) as usize].iter().filter(|choice| choice.state == 0);
        let algorithms: Vec<[u64; 8]> = usable.map(|choice| choice.algorithm).collect();
        (code == 0 && !algorithms.is_empty()).then_some(Plan { product, layouts, algorithms })
    }

    /// Whether the library can scale the lines of its sides.
    fn scale_lines(&self, product: usize, sums: Sums, sides: &Sides) -> bool {
        let is_known = self.try_to_scale_lines(product);
        if is_known {
            self.set(product, FAST_SUMS, &i8::from(sums == Sums::Fast));
            self.set(product, SCALES_OF_A, &sides.scales[0]);
            self.set(product, SCALES_OF_B, &sides.scales[1]);
        }
        is_known
    }

    fn try_to_scale_lines(&self, product: usize) -> bool {
        const BY_LINE: i32 = 3;
        let attributes = [SCALE_MODE_OF_A, SCALE_MODE_OF_B];
        attributes.iter().all(|attribute| self.try_set(product, *attribute, &BY_LINE) == 0)
    }

    /// Whether this version of the library knows scales of lines.
    pub(super) fn scales_lines(&self) -> bool {
        *self.scales_lines.get_or_init(|| self.try_to_scale_lines(self.product()))
    }

    /// A product that nothing is known of but its sums.
    fn product(&self) -> usize {
        const COMPUTE_F32: i32 = 68;
        let mut product = 0;
        let created = self.functions.product_create(&mut product, COMPUTE_F32, kind(KernelFormat::F32));
        if created != DONE {
            self.fail("describe a product", created);
        }
        product
    }

    fn set<T>(&self, product: usize, attribute: i32, value: &T) {
        let code = self.try_set(product, attribute, value);
        if code != DONE {
            self.fail(&format!("take attribute {attribute} of a product"), code);
        }
    }

    fn try_set<T>(&self, product: usize, attribute: i32, value: &T) -> i32 {
        if product == 0 {
            return INVALID_VALUE;
        }
        self.functions.product_set(product, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
    }

    fn wish<T>(&self, wish: usize, attribute: i32, value: &T) {
        self.functions.wish_set(wish, attribute, std::ptr::from_ref(value).cast(), size_of::<T>());
    }
}

const DONE: i32 = 0;
/// The library has no such product, and says so.
const INVALID_VALUE: i32 = 7;
const NOT_SUPPORTED: i32 = 15;

const TURN_A: i32 = 3;
const TURN_B: i32 = 4;
const EPILOGUE: i32 = 7;
const BIAS_POINTER: i32 = 8;
const SCALES_OF_A: i32 = 17;
const SCALES_OF_B: i32 = 18;
const FAST_SUMS: i32 = 25;
const BIAS_FORMAT: i32 = 26;
/// cuBLASLt 12.9 and later.
const SCALE_MODE_OF_A: i32 = 31;
const SCALE_MODE_OF_B: i32 = 32;
const WORKSPACE_BYTES: i32 = 1;
const FIRST_ALIGNMENT: i32 = 5;

/// How the library numbers formats.
fn kind(format: KernelFormat) -> i32 {
    match format {
        KernelFormat::F32 => 0,
        KernelFormat::F16 => 2,
        KernelFormat::Bf16 => 14,
        KernelFormat::Fp8 => 28,
        KernelFormat::Int8 | KernelFormat::Int4 => unreachable!("whole numbers are widened before a product"),
    }
}
