//! Versions, and whether they fit together.

use super::Expected;
use crate::check::{Check, Stack};
use crate::facts::{LibraryCopy, NodeFacts};
use crate::version::Version;

pub(super) fn judge(facts: &NodeFacts, expected: &Expected<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.extend(driver_for_hardware(facts, expected));
    checks.extend(driver_for_cuda(facts));
    checks.extend(cuda_for_hardware(facts, expected));
    checks.extend(nccl(facts, expected));
    checks.extend(several_nccl(facts));
    checks.extend(pytorch(facts));
    checks
}

/// The oldest driver for a CUDA version, from the release notes of the toolkit; minor releases of one major run on all of them.
const DRIVER_FOR_CUDA: [(u64, u64, &str); 3] = [(11, 450, "11"), (12, 525, "12"), (13, 580, "13")];

fn driver_for_hardware(facts: &NodeFacts, expected: &Expected<'_>) -> Option<Check> {
    let driver = facts.driver.as_ref()?;
    let (oldest, needs_open) = match expected.generation() {
        "hopper" => (525, false),
        "blackwell" => (570, true),
        "blackwell-ultra" => (575, true),
        _ => return None,
    };
    let title = expected.accelerator.map_or("the GPU", |accelerator| accelerator.title.as_str());
    if !driver.version.is_at_least(&[oldest]) {
        let check = Check::fail(
            "driver/version",
            Stack::Kernel,
            format!("driver {} is older than {oldest}", driver.version),
        );
        return Some(
            check
                .because(format!("{title} is not supported by it"))
                .fixed_by("install a current data centre driver"),
        );
    }
    if needs_open && !driver.is_open {
        let check = Check::fail(
            "driver/version",
            Stack::Kernel,
            format!("driver {} with closed kernel modules", driver.version),
        );
        return Some(
            check
                .because(format!("{title} works only with the open kernel modules"))
                .fixed_by("install nvidia-open"),
        );
    }
    None
}

/// Every CUDA runtime that is installed against the driver.
fn driver_for_cuda(facts: &NodeFacts) -> Option<Check> {
    let driver = &facts.driver.as_ref()?.version;
    let runtimes = facts.copies("cuda-runtime").filter_map(|library| library.version.as_ref());
    let torch = facts.copies("pytorch").filter_map(|library| library.cuda.as_ref());
    let newest = runtimes.chain(torch).max_by_key(|version| (version.major(), version.minor()))?;
    let (_, oldest, _) = DRIVER_FOR_CUDA.iter().find(|(major, ..)| *major == newest.major())?;
    if driver.is_at_least(&[*oldest]) {
        return Some(Check::pass(
            "cuda/driver",
            Stack::Runtime,
            format!("CUDA {newest} runs on driver {driver}"),
        ));
    }
    Some(
        Check::fail("cuda/driver", Stack::Runtime, format!("CUDA {newest} needs driver {oldest} or newer; this is {driver}"))
            .because("programs end with `CUDA driver version is insufficient for CUDA runtime version`")
            .fixed_by("install a newer driver, or a build for an older CUDA; the forward-compatibility package works on data centre GPUs"),
    )
}

fn cuda_for_hardware(facts: &NodeFacts, expected: &Expected<'_>) -> Vec<Check> {
    let needed: [u64; 2] = match expected.generation() {
        "hopper" => [11, 8],
        "blackwell" => [12, 8],
        "blackwell-ultra" => [12, 9],
        _ => return Vec::new(),
    };
    let title = expected.accelerator.map_or("the GPU", |accelerator| accelerator.title.as_str());
    let built = facts.copies("pytorch").filter_map(|library| Some((library, library.cuda.as_ref()?)));
    let old = built.filter(|(_, cuda)| !cuda.is_at_least(&needed));
    let check = |(library, cuda): (&LibraryCopy, &Version)| {
        Check::fail(
            "cuda/hardware",
            Stack::Framework,
            format!("PyTorch is built for CUDA {cuda}; {title} needs {}.{}", needed[0], needed[1]),
        )
        .because("its kernels do not exist for this GPU: `no kernel image is available for execution`")
        .fixed_by("install a build for a newer CUDA")
        .seen_in(&library.path)
    };
    old.map(check).collect()
}

fn nccl(facts: &NodeFacts, expected: &Expected<'_>) -> Option<Check> {
    const RULE: &str = "library/nccl";
    let version = facts.version("nccl")?;
    let (needed, why): (&[u64], &str) = match expected.generation() {
        "hopper" => (&[2, 18], "NVLink SHARP and the tuning for Hopper came with 2.18"),
        "blackwell" | "blackwell-ultra" => {
            (&[2, 26], "Blackwell is supported since 2.25 and tuned since 2.26")
        }
        _ => (&[2, 14], "plugins for the network need its interface"),
    };
    if version.is_at_least(needed) {
        return Some(Check::pass(RULE, Stack::Communication, format!("NCCL {version}")));
    }
    let check = Check::warn(
        RULE,
        Stack::Communication,
        format!("NCCL {version} is older than {}.{}", needed[0], needed[1]),
    );
    Some(check.because(why).fixed_by("install a newer NCCL, or a newer PyTorch, which brings its own"))
}

/// PyTorch from pip loads the copy that it brings, unless LD_LIBRARY_PATH or LD_PRELOAD put another one first.
fn several_nccl(facts: &NodeFacts) -> Option<Check> {
    let copies: Vec<&LibraryCopy> = facts.copies("nccl").filter(|copy| copy.version.is_some()).collect();
    let first = copies.first()?.version.as_ref()?;
    let differs =
        |copy: &&&LibraryCopy| copy.version.as_ref().is_some_and(|version| !version.agrees_with(first, 2));
    let other = copies.iter().find(differs)?;
    let mut check = Check::warn(
        "library/nccl-copies",
        Stack::Communication,
        format!("there are different versions of NCCL: {first} and {}", other.version.as_ref()?),
    )
    .because("which one a job uses depends on how it was built and on LD_LIBRARY_PATH; nodes may differ")
    .fixed_by("keep one; `NCCL_DEBUG=VERSION` shows which one a job loads");
    for copy in copies {
        check = check.seen_in(&copy.path);
    }
    Some(check)
}

fn pytorch(facts: &NodeFacts) -> Vec<Check> {
    let told = |library: &LibraryCopy| {
        let version =
            library.version.as_ref().map_or_else(|| "of unknown version".to_owned(), ToString::to_string);
        match &library.cuda {
            Some(cuda) => format!("PyTorch {version} for CUDA {cuda}"),
            None => format!("PyTorch {version} without CUDA"),
        }
    };
    let check = |library: &LibraryCopy| {
        if library.cuda.is_none() && facts.has_gpus() {
            return Check::fail("framework/pytorch", Stack::Framework, told(library))
                .because("a build for processors does not see the GPUs")
                .fixed_by("install a build for CUDA from PyTorch's index")
                .seen_in(&library.path);
        }
        Check::pass("framework/pytorch", Stack::Framework, told(library)).seen_in(&library.path)
    };
    facts.copies("pytorch").map(check).collect()
}
