//! A real Slurm to try things on by hand: `cargo run -p bedplate-peers --example slurm`, until a line comes in.

use bedplate_peers::{Slurm, SlurmShape};

#[expect(clippy::print_stdout, reason = "an example talks to whoever starts it")]
fn main() -> Result<(), String> {
    let slurm = Slurm::start(&SlurmShape { accounting: true, rest: true, ..SlurmShape::default() })?;
    println!("export SLURM_CONF={}", slurm.configuration_path().display());
    println!("REST on {} and, with a JWT, on {}", slurm.rest_socket().display(), slurm.rest_url());
    println!("a line ends it");
    std::io::stdin().read_line(&mut String::new()).map_err(|error| error.to_string())?;
    Ok(())
}
