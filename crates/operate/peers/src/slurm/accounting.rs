//! Slurm's accounting: a database in the folder, slurmdbd, and a few accounts.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::Slurm;
use super::configuration::user;
use super::process::{run, spawn, stop};

const PATIENCE: Duration = Duration::from_secs(120);

impl Slurm {
    pub(super) fn start_database(&self) -> Result<(), String> {
        let folder = self.path("database");
        let data = format!("--datadir={}/data", folder.display());
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let user = format!("--user={}", user());
        let install = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"];
        run(Command::new("mariadb-install-db").args(install).args([&user, &data]))?;
        let mut server = Command::new("mariadbd");
        server.args(["--no-defaults", "--bind-address=127.0.0.1", "--innodb-buffer-pool-size=64M"]);
        server.args(["--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve", &user, &data]);
        server.arg(format!("--port={}", self.ports.database));
        server.arg(format!("--socket={}/socket", folder.display()));
        server.arg(format!("--pid-file={}/pid", folder.display()));
        spawn(&mut server, &self.path("log/database.log"))?;
        self.wait_until("its database does not answer", PATIENCE, || self.query("select 1").is_ok())?;
        self.query(
            "create database slurm_acct_db; create user 'slurm'@'127.0.0.1' identified by 'pw'; \
             grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1'",
        )
    }

    fn query(&self, text: &str) -> Result<(), String> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "-uroot", "-S"]).arg(self.path("database/socket"));
        run(client.args(["-e", text]))
    }

    pub fn start_accounting(&self) -> Result<(), String> {
        run(&mut self.command("/usr/sbin/slurmdbd"))?;
        self.wait_until("slurmdbd does not answer", PATIENCE, || {
            let mut asked = self.command("sacctmgr");
            asked.args(["-n", "list", "cluster"]).stdin(Stdio::null());
            asked.output().is_ok_and(|output| output.status.success())
        })
    }

    /// Ends slurmdbd; the database goes on.
    pub fn stop_accounting(&self) {
        stop(&[self.path("slurmdbd.pid")]);
    }

    pub(super) fn add_accounts(&self) -> Result<(), String> {
        let order = |words: &str| run(self.command("sacctmgr").arg("-i").args(words.split(' ')));
        order("add cluster story")?;
        order("add account research fairshare=10")?;
        order("add account prod fairshare=30")?;
        order("add qos urgent priority=1000")?;
        for user in std::iter::once(user()).chain(self.shape.users.iter().cloned()) {
            order(&format!("add user {user} account=research,prod qos=normal,urgent"))?;
        }
        Ok(())
    }
}
