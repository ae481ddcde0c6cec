//! The program: see the crate's documentation. larder starts it with a socket as standard input.

use std::process::ExitCode;

use larder_helper::{privilege, protocol, serve};

fn main() -> ExitCode {
    // The default hook reads the environment.
    std::panic::set_hook(Box::new(|_| ()));
    if let Err(error) = privilege::keep_one() {
        eprintln!("larder-helper: cannot give up privileges: {error}");
        return ExitCode::FAILURE;
    }
    let (socket, uid) = (rustix::stdio::stdin(), rustix::process::getuid().as_raw());
    if !protocol::is_link(socket, uid) {
        eprintln!(
            "larder-helper: registers cached files with the kernel for larder mounts without root; larder \
             starts it by itself"
        );
        return ExitCode::from(2);
    }
    match serve::serve(socket, uid) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("larder-helper: not a request: {error}");
            ExitCode::FAILURE
        }
    }
}
