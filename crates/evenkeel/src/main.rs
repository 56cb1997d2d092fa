//! The program: picks the allocator, hands the rest to the library.
//!
//! Everything it can do is in the library, where tests can reach it; begin at `cli`.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    evenkeel::cli::main()
}
