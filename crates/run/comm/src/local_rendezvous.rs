//! Where ranks that this program starts on this machine find each other.

use std::io;
use std::net::TcpListener;
use std::process::Command;

use crate::{Rendezvous, random_text};

/// An address, a port and a secret that only these ranks know.
#[derive(Debug)]
pub struct LocalRendezvous {
    address: String,
    port: u16,
    secret: String,
}

impl LocalRendezvous {
    /// A free port of this machine.
    pub fn here() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let secret = random_text()?;
        Ok(Self { address: "127.0.0.1".to_owned(), port: listener.local_addr()?.port(), secret })
    }

    /// The same at another address of rank 0.
    pub fn at(self, address: &str) -> Self {
        Self { address: address.to_owned(), ..self }
    }

    /// Tells a process that it is a rank.
    pub fn tell(&self, command: &mut Command, rank: u32, ranks: u32) {
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .env("MASTER_ADDR", &self.address)
            .env("MASTER_PORT", self.port.to_string())
            .env("BEDPLATE_SECRET", &self.secret)
            .env_remove("TORCHELASTIC_USE_AGENT_STORE");
    }

    /// The same for a rank in this process.
    pub fn rendezvous(&self, rank: u32, ranks: u32) -> Rendezvous {
        Rendezvous::on_this_machine(rank, ranks, self.port, self.secret.as_bytes())
    }
}
