//! A Slurm: munge, one controller, several nodes, all on loopback.

use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{Daemon, Ports, wait_for};

/// Nodes advertise more CPUs than the machine has, so that short cells overlap as on a real cluster.
const CPUS: usize = 8;

pub(crate) struct Slurm {
    dir: PathBuf,
    nodes: Vec<Option<Daemon>>,
    controller: Option<Daemon>,
    _munge: Daemon,
    _ports: Ports,
}

impl Slurm {
    /// Whether the required programs are installed.
    pub(crate) fn there() -> bool {
        ["slurmctld", "slurmd", "munged", "sbatch"].into_iter().all(super::on_path)
    }

    /// Starts a cluster in a directory; `extra` are additional lines of `slurm.conf`.
    pub(crate) fn start(dir: &Path, nodes: usize, extra: &str) -> io::Result<Self> {
        for name in ["munge", "state", "spool", "run", "log"] {
            std::fs::create_dir_all(dir.join(name))?;
        }
        std::fs::set_permissions(dir.join("munge"), std::fs::Permissions::from_mode(0o755))?;
        let munge = munge(dir)?;
        let ports = Ports::hold(nodes + 2)?;
        std::fs::write(dir.join("slurm.conf"), configuration(dir, &ports.numbers, extra)?)?;
        let mut slurm = Self {
            dir: dir.to_owned(),
            nodes: (0..nodes).map(|_| None).collect(),
            controller: None,
            _munge: munge,
            _ports: ports,
        };
        slurm.start_controller()?;
        for node in 0..nodes {
            slurm.start_node(node)?;
        }
        wait_for("all nodes idle", || {
            let idle = slurm.ask("sinfo", &["-h", "-o", "%D", "-t", "idle"]);
            idle.lines().filter_map(|line| line.trim().parse::<usize>().ok()).sum::<usize>()
                == nodes
        })?;
        Ok(slurm)
    }

    pub(crate) fn conf(&self) -> PathBuf {
        self.dir.join("slurm.conf")
    }

    pub(crate) fn start_controller(&mut self) -> io::Result<()> {
        let mut command = Command::new("/usr/sbin/slurmctld");
        command.arg("-D").arg("-f").arg(self.conf());
        self.controller = Some(Daemon::start(&mut command, &self.dir.join("log/slurmctld"))?);
        wait_for("the controller answers", || {
            self.tool("scontrol", &["ping"])
                .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("is UP"))
        })
    }

    /// Kills the controller as a crash would.
    pub(crate) fn kill_controller(&mut self) {
        if let Some(mut controller) = self.controller.take() {
            controller.end("KILL");
        }
    }

    /// Sends the controller a signal, such as STOP, after which requests wait, or CONT.
    pub(crate) fn signal_controller(&self, signal: &str) {
        if let Some(controller) = &self.controller {
            controller.signal(signal);
        }
    }

    /// Whether the controller's saved job state contains this text.
    pub(crate) fn has_saved(&self, text: &str) -> bool {
        std::fs::read(self.dir.join("state/job_state"))
            .is_ok_and(|saved| saved.windows(text.len()).any(|window| window == text.as_bytes()))
    }

    /// Kills the controller and starts one without any saved jobs.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.kill_controller();
        std::fs::remove_dir_all(self.dir.join("state"))?;
        std::fs::create_dir(self.dir.join("state"))?;
        self.start_controller()
    }

    pub(crate) fn start_node(&mut self, node: usize) -> io::Result<()> {
        let mut command = Command::new("/usr/sbin/slurmd");
        command.arg("-D").arg("-N").arg(format!("n{}", node + 1)).arg("-f").arg(self.conf());
        let log = self.dir.join(format!("log/n{}", node + 1));
        self.nodes[node] = Some(Daemon::start(&mut command, &log)?);
        Ok(())
    }

    /// Starts a node on which an empty directory is mounted over this one.
    pub(crate) fn start_blind_node(&mut self, node: usize, hidden: &Path) -> io::Result<()> {
        let script = "mount -t tmpfs none \"$0\" && exec /usr/sbin/slurmd \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).arg(hidden);
        command.arg("-D").arg("-N").arg(format!("n{}", node + 1)).arg("-f").arg(self.conf());
        let log = self.dir.join(format!("log/n{}", node + 1));
        self.nodes[node] = Some(Daemon::start(&mut command, &log)?);
        Ok(())
    }

    /// Kills a node's daemon; its tasks keep running.
    pub(crate) fn kill_node(&mut self, node: usize) {
        if let Some(mut daemon) = self.nodes[node].take() {
            daemon.end("KILL");
        }
    }

    /// Runs one of Slurm's commands.
    pub(crate) fn tool(&self, program: &str, arguments: &[&str]) -> io::Result<Output> {
        Command::new(program).env("SLURM_CONF", self.conf()).args(arguments).output()
    }

    /// The output of a command; empty if it fails.
    pub(crate) fn ask(&self, program: &str, arguments: &[&str]) -> String {
        self.tool(program, arguments)
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // A stopped controller does not answer.
        self.signal_controller("CONT");
        // Jobs first: without their daemons nothing ends them.
        _ = self.tool("scancel", &["--me"]);
        _ = wait_for("no job is left", || {
            self.controller.is_none() || self.ask("squeue", &["-h", "--me"]).trim().is_empty()
        });
        self.nodes.clear();
        self.controller = None;
    }
}

fn munge(dir: &Path) -> io::Result<Daemon> {
    let munge = dir.join("munge");
    let key = munge.join("key");
    let mut bytes = vec![0; 1024];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    std::fs::write(&key, bytes)?;
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
    let socket = munge.join("socket");
    let option = |name: &str, value: &Path| format!("--{name}={}", value.display());
    let mut command = Command::new("/usr/sbin/munged");
    // In a test, the parent directories may belong to any user.
    command.args([
        "--foreground".to_owned(),
        "--force".to_owned(),
        option("socket", &socket),
        option("key-file", &key),
        option("pid-file", &munge.join("pid")),
        option("seed-file", &munge.join("seed")),
        option("log-file", &munge.join("log")),
    ]);
    let daemon = Daemon::start(&mut command, &munge.join("out"))?;
    wait_for("munge answers", || socket.exists())?;
    Ok(daemon)
}

/// The first two ports are the controller's and the nodes' default, the others the nodes' own.
fn configuration(dir: &Path, ports: &[u16], extra: &str) -> io::Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned();
    let dir = dir.display();
    let mut text = format!(
        "ClusterName=retake\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmUser=root\n\
         SlurmctldPort={}\n\
         SlurmdPort={}\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={dir}/munge/socket,cred_expire=20\n\
         CredType=cred/munge\n\
         CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n\
         StateSaveLocation={dir}/state\n\
         SlurmdSpoolDir={dir}/spool/%n\n\
         SlurmctldPidFile={dir}/run/slurmctld.pid\n\
         SlurmdPidFile={dir}/run/slurmd.%n.pid\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         SwitchType=switch/none\n\
         MpiDefault=none\n\
         SlurmdParameters=config_overrides\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_CPU\n\
         SchedulerParameters=batch_sched_delay=0,sched_interval=5,sched_min_interval=50000\n\
         ReturnToService=2\n\
         JobRequeue=1\n\
         KillWait=10\n\
         MinJobAge=300\n\
         SlurmdTimeout=10\n\
         InactiveLimit=0\n\
         AccountingStorageType=accounting_storage/none\n\
         JobAcctGatherType=jobacct_gather/none\n\
         {extra}\n",
        ports[0], ports[1],
    );
    for (index, port) in ports[2..].iter().enumerate() {
        // Writing to a string cannot fail.
        _ = writeln!(
            text,
            "NodeName=n{} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} \
             RealMemory=1000 State=UNKNOWN",
            index + 1
        );
    }
    _ = writeln!(text, "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP");
    Ok(text)
}
