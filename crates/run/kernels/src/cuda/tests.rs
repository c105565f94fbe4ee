//! Kernels without a GPU: every source is compiled for the chips it may run on.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::compile::Compiler;
use super::source::{self, Variant};

/// What the compiler must not say: numbers that do not fit into registers, and products that it made wait for each other.
fn complaints(log: &str) -> Vec<String> {
    let spills =
        |line: &str| line.contains("spill") && !line.contains("0 bytes spill stores, 0 bytes spill loads");
    let is_bad = |line: &&str| spills(line) || line.contains("C75") || line.contains("warning");
    log.lines().filter(is_bad).map(str::to_owned).collect()
}

fn check(compiler: &Compiler, variant: &Variant, architecture: &str) -> Vec<String> {
    let (source, options) = (variant.source, variant.options());
    let name = format!("{} {options:?} for {architecture}", source.name());
    match compiler.compile(source.name(), architecture, source.text(), &options) {
        Ok(compiled) => complaints(&compiled.log).iter().map(|line| format!("{name}: {line}")).collect(),
        Err(error) => vec![format!("{name}: {error}")],
    }
}

#[test]
fn every_kernel_compiles_for_every_chip_without_spilling_registers() {
    // The package that `./test` installs, where no other is found.
    let installed = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../target/nvrtc"));
    let compiler = match Compiler::in_environment(&installed) {
        Ok(compiler) => compiler,
        Err(error) => return println!("SKIPPED: no compiler for kernels: {error}"),
    };
    bedplate_peers::uses("nvrtc");
    let every: Vec<(Variant, &str)> = ["sm_80", "sm_90a", "sm_100"]
        .into_iter()
        .flat_map(|chip| source::variants(chip == "sm_90a").into_iter().map(move |variant| (variant, chip)))
        .filter(|(variant, chip)| *chip == "sm_90a" || !variant.source.is_hopper())
        .collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((variant, chip)) = every.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let complaints = check(&compiler, variant, chip);
                    found.lock().expect("no thread panicked").extend(complaints);
                }
            });
        }
    });
    assert_eq!(found.into_inner().expect("no thread panicked").join("\n"), "");
}

#[test]
fn what_is_missing_is_named_with_its_package() {
    use bedplate_diag::Diagnostic;
    let wanted = super::library::WantedLibrary {
        what: "a library",
        files: &["libbedplate-has-no-such.so.1"],
        package: "the package",
        companion: None,
    };
    let error = super::library::OpenLibrary::open(&wanted).err().expect("there is no such library");
    assert!(error.to_string().contains("libbedplate-has-no-such.so.1"), "{error}");
    assert_eq!(error.help().as_deref(), Some("install the package, or use `--device cpu`"));
}
