//! A metadata server that is killed under load, again and again.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use larder_io::{Disk, RealDisk};
use larder_wire::meta::words::FileId;

use crate::client::{Client, create, engine, serve};

/// In the environment of the process that is to be killed: the path of its store.
const STORE: &str = "LARDER_META_TEST_STORE";
/// Kills, unless the variable `LARDER_META_KILLS` says otherwise.
const KILLS: u64 = 6;
const CALLERS: u32 = 4;

fn disk(path: &Path) -> Arc<dyn Disk> {
    Arc::new(RealDisk::open(path).unwrap())
}

/// The server, if this is the process that is to be killed. Otherwise it does nothing.
#[test]
fn the_process_that_is_killed() {
    let Ok(store) = std::env::var(STORE) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let address = serve(engine(&disk(Path::new(&store)))).await;
        println!("\nserving {address}");
        std::future::pending::<()>().await;
    });
}

struct Victim(Child);

impl Victim {
    fn begin(store: &Path) -> (Victim, SocketAddr) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::the_process_that_is_killed", "--nocapture"])
            .env(STORE, store)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix("serving ").map(str::to_owned));
        let victim = Victim(child);
        (victim, address.expect("the server begins").parse().unwrap())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates files until the server does not answer. Returns the names that were acknowledged, and
/// the call that was not.
async fn load(
    client: Client,
    life: u64,
    caller: u32,
) -> (Vec<(String, FileId)>, larder_wire::meta::calls::Open) {
    let mut made = Vec::new();
    for sequence in 1.. {
        let name = format!("l{life}c{caller}n{sequence}");
        let call = create(client.sequence(caller, sequence), FileId::ROOT, &name);
        let root = client.rpc.auth_sys(0, 0, &[]);
        match client.rpc.call(&root, &call, larder_rpc::CallOptions::default()).await {
            Ok(reply) => made.push((name, reply.results.unwrap().file.after.file)),
            Err(_) => return (made, call),
        }
    }
    unreachable!("the server dies before")
}

/// What was acknowledged is there, nothing is half done, and the interrupted call is carried out
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn kill_after_kill_nothing_acknowledged_is_lost() {
    let kills = std::env::var("LARDER_META_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut made: Vec<(String, FileId)> = Vec::new();
    let mut cut_off: Vec<larder_wire::meta::calls::Open> = Vec::new();
    for life in 1..=kills {
        let (victim, address) = Victim::begin(dir.path());
        if life > 1 {
            let client = Client::connect(address, 1, life - 1).await;
            for call in cut_off.drain(..) {
                let opened = client.call(call.clone()).await.unwrap();
                assert_eq!(client.call(call).await.unwrap(), opened, "it is carried out once");
            }
        }
        let client = Client::connect(address, 1, life).await;
        for (name, file) in made.iter().rev().take(200) {
            assert_eq!(client.lookup(FileId::ROOT, name).await, Some(*file));
        }
        let callers: Vec<_> =
            (0..CALLERS).map(|caller| tokio::spawn(load(client.clone(), life, caller))).collect();
        // Not at a time, but after this many entries, whatever the server is doing then.
        let wanted = 50 + life * 37;
        loop {
            let call =
                larder_wire::meta::calls::GetAttr { session: client.session, file: FileId::ROOT };
            let root = client.call(call).await.unwrap();
            if root.change.0 > made.len() as u64 + wanted {
                break;
            }
        }
        drop(victim);
        client.rpc.shutdown();
        for caller in callers {
            let (one, call) = caller.await.unwrap();
            made.extend(one);
            cut_off.push(call);
        }
        let engine = engine(&disk(dir.path()));
        assert_eq!(larder_meta::check(&engine).unwrap(), []);
    }
    assert!(made.len() as u64 > kills * 50);
}
