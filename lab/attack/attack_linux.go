package attack

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// all names every attack. It is built when asked for, so that a program which
// only carries the package pays nothing at start.
func all() map[string]act {
	return map[string]act{
		// A
		"read":        {attack: readOutside},
		"write":       {attack: writeOutside},
		"links":       {attack: links},
		"fds":         {attack: openDescriptors},
		"handle":      {attack: byHandle},
		"mount":       {attack: mounts},
		"swap":        {plain: swapLoop},
		"hostiletree": {plain: hostileTree},
		"setuid":      {attack: setuidExec},
		"memfd":       {attack: memfdExec},
		"kernelfiles": {attack: kernelFiles},
		"processes":   {plain: listProcesses},
		"mountinfo":   {plain: printMountinfo},
		"cwd":         {attack: workingDirectory},
		// B
		"syscalls":  {attack: syscallMatrix},
		"foreign":   {attack: foreignCalls},
		"call":      {plain: oneForeignCall},
		"sockets":   {attack: socketMatrix},
		"tty":       {attack: ttyInjection},
		"regain":    {attack: regain},
		"newuser":   {plain: newUserNamespace},
		"status":    {plain: printStatus},
		"signal":    {attack: signalOutside},
		"unix":      {attack: unixConnect},
		"sysv":      {plain: readSysV},
		"mqueue":    {attack: readMqueue},
		"overwrite": {attack: overwriteExe},
		"info":      {plain: printInfo},
		// C
		"burn":      {plain: burn},
		"alloc":     {attack: allocate},
		"forks":     {attack: forks},
		"threads":   {attack: threads},
		"fill":      {attack: fillDisk},
		"flood":     {plain: flood},
		"survive":   {plain: survive},
		"openfiles": {attack: openFiles},
		"filesize":  {attack: fileSize},
		"priority":  {attack: priority},
		"rlimits":   {attack: rlimits},
		"kmem":      {attack: kernelMemory},
		"leave":     {plain: leaveIPC},
		"objects":   {attack: objects},
		"hold":      {plain: holdObjects},
		"setidfile": {attack: setIDFiles},
		"sync":      {attack: syncAll},
		"serve":     {plain: serve},
		// D
		"connect":  {attack: connectOut},
		"ping":     {attack: rawPackets},
		"loopback": {attack: loopback},
		// utilities
		"true":      {plain: func([]string) int { return 0 }},
		"false":     {plain: func([]string) int { return 1 }},
		"exit":      {plain: func(a []string) int { return number(a, 0, 0) }},
		"echo":      {plain: echo},
		"cat":       {plain: cat},
		"crash":     {plain: crash},
		"spin":      {plain: spin},
		"sleep":     {plain: sleepForever},
		"print-env": {plain: printEnv},
		"stat":      {plain: statFiles},
	}
}

// number is args[i] as an int, or def.
func number(args []string, i, def int) int {
	if i >= len(args) {
		return def
	}
	n, err := strconv.Atoi(args[i])
	if err != nil {
		return def
	}
	return n
}

func arg(args []string, i int, def string) string {
	if i >= len(args) {
		return def
	}
	return args[i]
}

// again is a command that runs this program's act once more.
func again(args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		exe = "/proc/self/exe"
	}
	return exec.Command(exe, append(append([]string{}, prefix...), args...)...)
}

// child runs an act in a process of its own and says how that ended.
func child(args ...string) (out []byte, code int, sig syscall.Signal, err error) {
	c := again(args...)
	var b bytes.Buffer
	c.Stdout = &b
	err = c.Run()
	if c.ProcessState == nil {
		return nil, -1, 0, err
	}
	ws := c.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return b.Bytes(), -1, ws.Signal(), nil
	}
	return b.Bytes(), ws.ExitStatus(), 0, nil
}
