// Starts the emulator on a free port of the loopback, says which, and ends with stdin.
const net = require("node:net");
const { FirestoreServer } = require("@firestore-emulator/server");

const free = () =>
	new Promise((resolve, reject) => {
		const s = net.createServer().on("error", reject);
		s.listen(0, "127.0.0.1", () => {
			const { port } = s.address();
			s.close(() => resolve(port));
		});
	});

const start = async () => {
	const port = await free();
	await new FirestoreServer().start(port);
	console.log(`ready 127.0.0.1:${port}`);
	process.stdin.on("end", () => process.exit(0)).resume();
};

start();
