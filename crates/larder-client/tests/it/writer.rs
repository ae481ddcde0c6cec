//! Whose credentials send what the kernel wrote itself: the server lets only the file's owner
//! write, and not user 0.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use larder_cache::Cache;
use larder_client::{Client, Start};
use larder_vfs::{
    Cred, DataPath, Error, FileSystem, Ino, LocalFile, MemRemote, OpenFlags, OpenId, SetAttr,
};

use crate::passthrough::{content_of, copy_tree, data_file, on_directory};
use crate::rig::{WRITE, root};

/// A file of a user, who opened it for the kernel to write, at a server that squashes root.
struct Written {
    server: MemRemote,
    client: Client,
    cache: Cache,
    connection: Arc<MemRemote>,
    ino: Ino,
    open: OpenId,
    local: LocalFile,
}

fn ann() -> Cred {
    Cred::new(1000, 1000, &[])
}

fn connect(server: &MemRemote) -> Arc<MemRemote> {
    let connection = server.another_client();
    connection.squash_root();
    Arc::new(connection)
}

impl Written {
    async fn in_directory(folder: &Path) -> Written {
        let server = MemRemote::new();
        let connection = connect(&server);
        let (client, cache) = on_directory(folder, connection.clone(), Start::NewMount).await;
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let new = client.create(&root(), Ino::ROOT, OsStr::new("file"), set, WRITE);
        let (entry, opened) = new.wait().await.unwrap();
        let ino = entry.ino;
        client.release(ino, opened.id).wait().await.unwrap();
        let owner = SetAttr { uid: Some(1000), gid: Some(1000), ..SetAttr::default() };
        client.setattr(&root(), ino, None, owner).wait().await.unwrap();
        let flags = OpenFlags { truncate: true, ..OpenFlags::WRITE };
        let opened = client.open(&ann(), ino, flags).wait().await.unwrap();
        let DataPath::Passthrough(local) = opened.path else { panic!("not by the kernel") };
        Written { server, client, cache, connection, ino, open: opened.id, local }
    }

    fn write(&self, text: &[u8], offset: u64) {
        rustix::io::pwrite(self.local.as_fd(), text, offset).unwrap();
    }

    async fn flush(&self) -> Result<(), Error> {
        self.client.flush(&ann(), self.ino, self.open, None).wait().await
    }

    async fn release(&self) {
        self.client.release(self.ino, self.open).wait().await.unwrap();
    }

    async fn content(&self) -> Vec<u8> {
        content_of(&self.server, "file").await
    }
}

/// A mapping lives longer than the descriptor: what is written to it after close(2) is found at the
/// last release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_after_the_last_close_is_sent_for_the_user_that_had_the_file_open() {
    let folder = tempfile::tempdir().unwrap();
    let file = Written::in_directory(folder.path()).await;
    file.write(b"before", 0);
    file.flush().await.unwrap();
    file.write(b" and after the close", 6);
    file.release().await;
    assert_eq!(file.content().await, b"before and after the close");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_late_at_the_close_is_sent_for_the_user_that_had_the_file_open() {
    let folder = tempfile::tempdir().unwrap();
    let file = Written::in_directory(folder.path()).await;
    file.write(b"late", 0);
    file.connection.time_out();
    assert_eq!(file.flush().await, Err(Error::TimedOut));
    file.release().await;
    file.connection.reconnect();
    file.client.write_back_all().await.unwrap();
    assert_eq!((file.content().await, file.cache.unsent()), (b"late".to_vec(), vec![]));
}

/// The process dies while the file is open. The next one continues the mount, or makes a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_process_left_is_sent_for_the_user_that_had_the_file_open() {
    for start in [Start::Resume, Start::NewMount] {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        std::fs::create_dir(&before).unwrap();
        let file = Written::in_directory(&before).await;
        file.write(b"by the dead", 0);
        copy_tree(&before, &after);
        let (client, cache) = on_directory(&after, connect(&file.server), start).await;
        if start == Start::Resume {
            rustix::io::pwrite(data_file(&after).as_fd(), b"by the kernel", 0).unwrap();
            client.release(file.ino, file.open).wait().await.unwrap();
        }
        client.write_back_all().await.unwrap();
        let expected = if start == Start::Resume { "by the kernel" } else { "by the dead" };
        assert_eq!(file.content().await, expected.as_bytes(), "{start:?}");
        assert_eq!(cache.unsent(), [], "{start:?}");
    }
}
