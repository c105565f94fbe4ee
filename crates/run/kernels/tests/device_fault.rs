//! The first error of a GPU stays, and nothing is asked of the GPU after it. The GPU is a stand-in that computes nothing, so each case is in a process of its own,
//! which finds it first.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use bedplate_diag::Diagnostic;
use bedplate_kernels::{Accumulate, Device};

const CHILD: &str = "BEDPLATE_TEST_CHILD";
const GPU: &str = "GPU 0 (Stand-in at 0000:1b:00.0, GPU-abababab-abab-abab-abab-abababababab)";
const ILLEGAL: &str = "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered";

/// In a process of its own; elsewhere it has nothing to do.
#[test]
fn operators_on_the_stand_in() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let device = Device::cuda(0).unwrap();
    let (mut x, mut y) = (device.zeros::<f32>(64), device.zeros::<f32>(64));
    device.write(x.view_mut(), &[1.0; 64]);
    let mut read = [7.0; 64];
    device.read(x.view(), &mut read);
    let is_well = device.check().is_ok();
    assert!(!is_well || read == [1.0; 64], "memory holds what was written");
    device.scale(x.view(), 2.0, y.view_mut());
    let mut z = device.zeros::<f32>(64);
    device.linear(x.view().matrix(8, 8), y.view(), None, None, z.view_mut().matrix(8, 8));
    device.put_rows(x.view().matrix(8, 8), Accumulate::Replace, y.view_mut().matrix(8, 8));
    let graph = device.capture(|device| device.scale(x.view(), 2.0, y.view_mut())).unwrap();
    let _ = device.launch_graph(&graph);
    let transfers = device.transfers().unwrap();
    let moment = transfers.as_ref().map(|transfers| transfers.operators().is_ok());
    let sum = device.sum(x.view());
    device.copy(x.view(), y.view_mut());
    read.fill(7.0);
    device.read(x.view(), &mut read);
    device.synchronize();
    match device.check() {
        Ok(()) => println!("said: well, sum {sum}, read {:?}\nend", read[0]),
        Err(error) => {
            assert!(sum.is_nan() && read == [0.0; 64], "nothing of a broken GPU is told: {sum} {}", read[0]);
            assert!(!matches!(moment, Ok(true)), "no call of NCCL is begun after it");
            println!("said: {} {:?} {error}\nend", error.page().code, error.page().class);
        }
    }
}

/// What the operators end with where the GPU fails as planned, and what the driver was asked for from then on.
fn outcome(plan: &str) -> (String, Vec<String>) {
    let (text, calls) = bedplate_fakenvml::on_stand_in("operators_on_the_stand_in", plan).unwrap();
    let said = text.split_once("said: ").and_then(|(_, rest)| rest.split_once("\nend")).map(|(said, _)| said);
    (said.map_or(text.clone(), str::to_owned), calls)
}

/// Asserts that nothing was started after the call that failed.
fn assert_silent(plan: &str, calls: &[String]) {
    let work = ["Launch", "Memcpy", "Memset", "Matmul", "Alloc_v2", "Record", "BeginCapture"];
    let later: Vec<&String> =
        calls.iter().skip(1).filter(|call| work.iter().any(|work| call.contains(work))).collect();
    assert!(later.is_empty() && !calls.is_empty(), "{plan}: {later:?}");
}

#[test]
fn the_first_error_stays_and_nothing_is_launched_after_it() {
    for (plan, what) in [
        ("cuLaunchKernelEx:1:700", "start the kernel scale"),
        ("cuLaunchKernelEx:2:700", "start the kernel put_rows"),
        ("cuStreamSynchronize:1:700", "finish its work"),
        ("cuMemcpyDtoHAsync_v2:1:700", "give elements"),
        ("cuMemcpyHtoDAsync_v2:1:700", "take elements"),
        ("cuMemsetD8Async:2:700", "set memory"),
        ("cuMemAlloc_v2:2:700", "give 256 bytes of memory"),
        ("cuModuleLoadData:1:700", "load the kernels of stream"),
        ("cuStreamBeginCapture_v2:1:700", "begin a CUDA graph"),
        ("cuStreamEndCapture:1:700", "end a CUDA graph"),
        ("cuGraphLaunch:1:700", "launch a CUDA graph"),
        ("cuEventRecord:1:700", "record an event"),
    ] {
        let (said, calls) = outcome(plan);
        assert_eq!(said, format!("cuda/device-fault Transient {GPU} failed to {what}: {ILLEGAL}"), "{plan}");
        assert_silent(plan, &calls);
    }
}

#[test]
fn a_library_that_fails_is_the_gpus_error_and_one_without_an_algorithm_is_not() {
    let (said, calls) = outcome("cublasLtMatmul:1:13");
    let words = "multiply matrices: CUBLAS_STATUS_EXECUTION_FAILED (13)";
    assert_eq!(said, format!("cuda/device-fault Transient {GPU} failed to {words}"));
    assert_silent("product", &calls);
    assert!(outcome("cublasLtMatmul:1:15").0.starts_with("well"));
}

#[test]
fn memory_that_is_used_up_is_said_and_is_no_bug() {
    let (said, calls) = outcome("cuMemAlloc_v2:2:2");
    let words =
        "has too little free memory to give 256 bytes of memory: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory";
    assert_eq!(said, format!("cuda/out-of-memory User {GPU} {words}"));
    assert_silent("allocation", &calls);
}

#[test]
fn where_nothing_fails_all_is_asked_for() {
    assert_eq!(outcome("cuLaunchKernelEx:1000:700").0, "well, sum 0, read 1.0");
}
