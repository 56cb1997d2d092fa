//! The binary: sets the allocator and calls the library.
//!
//! All features are in the library, where tests can use them. Read `cli` next.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    evenkeel::cli::main()
}
